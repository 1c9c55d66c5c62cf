"""Saved checkpoints are evaluated by a flow run that finds them, once each, and again only for what has changed."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.holds import is_held
from infra.ledger import all_entries
from infra.model import EvalReport, SkippedPoint
from infra.records import history
from infra.store import Store
from tests.end_to_end.command import pinpoint
from tests.end_to_end.points import run_name, wait_until
from tests.services.stack import FLEET, RunningStack
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

SUITE = """
name: nightly
defaults: {sampling: {max_new_tokens: 4}}
datasets:
  - {name: sums, source: sums.jsonl}
  - {name: more, source: more.jsonl}
"""
UNDER_WAY = ("SCHEDULED", "PENDING", "RUNNING")


class Saved:
    """A trainer's folder of checkpoints, a suite file, and what becomes of them in a store of their own."""

    def __init__(self, services: RunningStack, folder: Path, run: str) -> None:
        self.services, self.folder, self.run = services, folder, run
        self.store = Store(services.file_url(f"store-{run}"))
        self.root = folder / run / "checkpoints"
        (folder / "suite.yaml").write_text(SUITE)
        self.ask(sums="1+1=", more="2+2=")
        for step in (10, 20, 30):
            self.save(step)

    def save(self, step: int, seed: int | None = None) -> Path:
        made = self.root / f"step_{step}"
        build_model(step if seed is None else seed, hidden=32, layers=1).save_pretrained(made)
        build_tokenizer().save_pretrained(made)
        return made

    def ask(self, **prompts: str) -> None:
        for name, prompt in prompts.items():
            (self.folder / f"{name}.jsonl").write_text(f'{{"prompt": "{prompt}", "answer": "2"}}\n')

    def parameters(self, **changes: Any) -> dict[str, Any]:
        where = {"store_url": self.store.url, "fleet": FLEET.model_dump(mode="json")}
        care = {"settle_s": 0, "at_once": 5}
        return {"roots": [str(self.root)], "suite": str(self.folder / "suite.yaml"), "where": where, "care": care, **changes}

    def trigger(self, **changes: Any) -> str:
        """Runs the deployment to its end; gives the line that the flow logged."""
        deployment = self.services.deployment_id("reevaluate_saved/pinpoint")
        made = self.services.post(f"/deployments/{deployment}/create_flow_run", {"parameters": self.parameters(**changes)})

        def state() -> str:
            return str(self.services.asked("GET", f"/flow_runs/{made['id']}").json()["state"]["type"])

        wait_until(lambda: state() in ("COMPLETED", "FAILED", "CRASHED"), 240)
        assert state() == "COMPLETED"
        artifacts = self.services.post("/artifacts/filter", {"flow_runs": {"id": {"any_": [made["id"]]}}})
        return str(artifacts[0]["description"])

    def records(self, count: int) -> list[EvalReport | SkippedPoint]:
        wait_until(lambda: len(history(self.store, self.run)) >= count, 400)
        found = history(self.store, self.run)
        assert len(found) == count
        return found

    def flow_runs(self) -> list[dict[str, Any]]:
        return self.services.flow_runs(self.run)


@pytest.fixture
def saved(services: RunningStack, tmp_path: Path, request: pytest.FixtureRequest) -> Saved:
    return Saved(services, tmp_path, run_name(request))


def measured(records: list[EvalReport | SkippedPoint]) -> list[tuple[int, list[str] | str]]:
    return [
        (record.point.step, [result.dataset for result in record.results] if isinstance(record, EvalReport) else record.reason)
        for record in records
    ]


def test_each_is_evaluated_once_a_poisoned_one_is_a_skip_and_a_changed_suite_asks_only_what_has_changed(saved: Saved) -> None:
    weights = saved.root / "step_20" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "3 checkpoints: 3 would run" in saved.trigger(dry_run=True)
    assert "3 submitted" in saved.trigger()
    wait_until(lambda: len(saved.flow_runs()) == 3, 30)
    records = saved.records(3)
    assert measured(records) == [(10, ["sums", "more"]), (20, "ckpt_invalid"), (30, ["sums", "more"])]
    wait_until(lambda: not is_held(saved.root / "step_30"), 30)
    again = saved.trigger()
    assert ("2 evaluated" in again, "1 given up" in again, "submitted" in again) == (True, True, False)
    assert len(saved.flow_runs()) == 3

    saved.ask(more="7+1=")
    fleet = FLEET.model_dump_json()
    command = ("reevaluate", saved.root, "--suite", saved.folder / "suite.yaml", "--settle", "0", "--at-once", "3")
    done = pinpoint(*command, "--store", saved.store.url, timeout_s=600, PINPOINT_FLEET=fleet)
    assert done.returncode == 1, done.stdout + done.stderr  # the poisoned one has been asked anew, under the new suite
    assert "step 30: submitted" in done.stdout
    assert measured(saved.records(6))[1::2] == [(10, ["more"]), (20, "ckpt_invalid"), (30, ["more"])]
    done = pinpoint(*command, "--store", saved.store.url, timeout_s=600, PINPOINT_FLEET=fleet)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(history(saved.store, saved.run)) == 6

    listed = pinpoint("retry", "--store", saved.store.url)
    assert "2 keys have no report" in listed.stdout
    for entry in all_entries(saved.store):
        if entry.report is None:
            pinpoint("retry", entry.key.text, "--store", saved.store.url)
    saved.save(20)  # its trainer has mended it: another key, whatever was retried
    done = pinpoint(*command, "--store", saved.store.url, timeout_s=600, PINPOINT_FLEET=fleet)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (20, ["sums", "more"]) in measured(saved.records(7))


def test_a_checkpoint_that_is_deleted_under_the_evaluation_is_missing_and_no_crash(saved: Saved) -> None:
    for step in (10, 20):
        shutil.rmtree(saved.root / f"step_{step}")
    saved.trigger()
    shutil.rmtree(saved.root / "step_30")  # by a retention that asks nobody
    [record] = saved.records(1)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "ckpt_missing"
    wait_until(lambda: all(run["state"]["type"] not in UNDER_WAY for run in saved.flow_runs()), 60)
    assert [run["state"]["name"] for run in saved.flow_runs()] == ["Skipped"]


def test_a_checkpoint_in_object_storage_is_evaluated_alike(saved: Saved) -> None:
    url = saved.services.s3_url(f"runs/{saved.run}")
    store = Store(url)
    for file in (saved.root / "step_10").iterdir():
        store.upload(file, f"global_step_10/{file.name}")
    told = saved.trigger(roots=[url])
    assert "1 submitted" in told
    [record] = saved.records(1)
    assert isinstance(record, EvalReport), record
    assert record.point.step == 10
    assert "1 evaluated" in saved.trigger(roots=[url])


def test_a_flow_run_that_is_killed_leaves_a_skip_and_the_next_trigger_tries_again(saved: Saved) -> None:
    for step in (10, 20):
        shutil.rmtree(saved.root / f"step_{step}")
    saved.trigger()
    wait_until(lambda: bool(begun(saved.store)), 120)
    kill_flow_run(begun(saved.store)[0])
    [record] = saved.records(1)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "crashed"
    assert "1 submitted" in saved.trigger()
    records = saved.records(2)
    assert [type(one) for one in records] == [SkippedPoint, EvalReport]
    assert len(saved.flow_runs()) == 2


def begun(store: Store) -> list[str]:
    """Ids of the flow runs that have begun a try."""
    return [store.read(key).decode().split()[0] for key in store.list("ledger") if key.endswith("/begun.json")]


def kill_flow_run(id: str) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == id:
                process.kill()

"""The demo's own path: every number is of its weights and no others, and equals what transformers itself would give."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from flows.demo import DemoOptions, run_demo
from infra.model import EvalReport, ProofLevel
from infra.presentation import score_text
from infra.records import history, samples_at
from infra.store import Store
from tests.end_to_end.command import pinpoint
from tests.services.stack import RunningStack

DATASETS = {"held_out_addition", "basic_arithmetic"}


@pytest.fixture(scope="module", params=["file", "s3"])
def demo(request: pytest.FixtureRequest, services: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return Demo(services, request.param, tmp_path_factory.mktemp("kept"))


class Demo:
    """A small demo that has run: two points, and the checkpoints that the trainer kept for itself."""

    def __init__(self, services: RunningStack, kind: str, kept: Path) -> None:
        self.run, self.kept = f"demo-{kind}", kept
        url = services.file_url("store-demo") if kind == "file" else services.s3_url("demo")
        self.settings = services.settings(url)
        self.store = Store(url)
        self.services = services
        options = DemoOptions(run=self.run, steps=4, every=4, small=True, problems=24, keep_checkpoints=kept)
        run_demo(options, self.settings, services.stack, Console(quiet=True))
        self.records = history(self.store, self.run)

    def reports(self) -> list[EvalReport]:
        return [record for record in self.records if isinstance(record, EvalReport)]

    def samples(self, report: EvalReport, dataset: str) -> list[dict[str, object]]:
        result = next(result for result in report.results if result.dataset == dataset)
        return [asdict(sample) for sample in samples_at(self.store, result.samples_location)]


def test_each_due_step_has_its_report(demo: Demo) -> None:
    assert [(record.kind, record.point.step) for record in demo.records] == [("report", 0), ("report", 4)]
    assert [record.point.final for record in demo.records] == [False, True]
    for report in demo.reports():
        assert {result.dataset for result in report.results} == DATASETS
        assert all(result.n_samples == 24 and result.coverage == 1.0 for result in report.results)


def test_every_response_carried_exactly_the_version_of_its_point(demo: Demo) -> None:
    tokens = {report.weight_version for report in demo.reports()}
    assert len(tokens) == 2
    for report in demo.reports():
        for dataset in DATASETS:
            versions = [sample["weight_versions"] for sample in demo.samples(report, dataset)]
            assert versions == [(report.weight_version,)] * 24
        assert all(result.weight_version_mean == report.point.step for result in report.results)
        assert all(result.mixed_version_ratio == 0 for result in report.results)


def test_every_engine_proved_the_content_of_its_weights(demo: Demo) -> None:
    for report in demo.reports():
        assert len(report.proofs) == 2
        assert {proof.level for proof in report.proofs} == {ProofLevel.CONTENT}
    first, last = demo.reports()
    assert first.snapshot_digest != last.snapshot_digest
    assert first.proofs[0].checksum != last.proofs[0].checksum


def _answer(text: str) -> int | None:
    digits = "".join(itertools.takewhile(str.isdigit, text))
    return int(digits) if digits else None


def test_responses_and_scores_equal_an_independent_greedy_pass_of_transformers(demo: Demo) -> None:
    for report in demo.reports():
        folder, expected = demo.kept / f"step_{report.point.step}", {dataset: list[bool]() for dataset in DATASETS}
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
        for dataset in DATASETS:
            for sample in demo.samples(report, dataset):
                inputs = tokenizer(sample["prompt"], return_tensors="pt", return_token_type_ids=False)
                with torch.inference_mode():
                    output = model.generate(**inputs, max_new_tokens=6, do_sample=False)
                text = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
                assert sample["response"] == text
                left, right = str(sample["prompt"]).rstrip("=").split("+")
                expected[dataset].append(_answer(text) == int(left) + int(right))
        for result in report.results:
            assert result.score is not None
            assert result.score.mean == pytest.approx(sum(expected[result.dataset]) / 24)


def test_no_snapshot_is_left_and_the_report_is(demo: Demo) -> None:
    assert demo.store.list("snapshots") == {}
    staged = demo.settings.staging_dir / "staged"
    assert [path for path in staged.rglob("*") if path.is_file()] == []
    fetched = demo.settings.staging_dir / "fetched"
    assert [path for path in fetched.rglob("*") if path.is_file()] == []
    assert len(history(demo.store, demo.run)) == 2


def test_the_history_in_prefect_grew_point_by_point(demo: Demo) -> None:
    body = {"artifacts": {"key": {"any_": [f"history-{demo.run}"]}}}
    versions = demo.services.post("/artifacts/filter", body)
    points = [len(json.loads(version["data"])) for version in sorted(versions, key=lambda version: str(version["created"]))]
    assert points == sorted(points)
    assert (len(points) >= 2, points[-1]) == (True, 2)  # each point brought one
    runs = demo.services.flow_runs(demo.run)
    assert [(run["name"], run["state"]["type"]) for run in runs] == [
        (f"{demo.run} · step 000000", "COMPLETED"),
        (f"{demo.run} · step 000004", "COMPLETED"),
    ]
    names = {task["name"] for task in demo.services.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [runs[1]["id"]]}}})}
    expected = {"export step 4", "acquire fleet test", "pin step 4", "report step 4", "retire step 4"}
    assert names == expected | {f"run {dataset}" for dataset in DATASETS}


def test_the_history_in_the_terminal_shows_the_same_later(demo: Demo) -> None:
    done = pinpoint("history", demo.run, "--store", demo.store.url)
    assert done.returncode == 0, done.stderr
    for report in demo.reports():
        for result in report.results:
            assert score_text(result) in done.stdout


def test_no_secret_is_in_what_prefect_shows(demo: Demo) -> None:
    runs = demo.services.flow_runs(demo.run)
    shown = json.dumps(runs) + json.dumps(demo.services.post("/logs/filter", {"limit": 200}))
    assert demo.services.s3.secret_key not in shown

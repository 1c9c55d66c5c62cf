"""An outage becomes a skipped point, with its reason where people look; what the point owned is gone on every outcome."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra import leases
from infra.model import DatasetSpec, EvalPoint, EvalReport, EvalRequest, Sampling, SkippedPoint, SnapshotSource, Suite
from infra.records import find, now
from infra.snapshot import new_prefix
from infra.store import Store
from tests.services.stack import FLEET, RunningStack
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox
from trainer_integration.prefect_api import PrefectApi
from trainer_integration.submit import Submitter
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_model(3, hidden=32, layers=2).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


class Points:
    """Submits points as a trainer does, from staged copies of one model."""

    def __init__(self, services: RunningStack, model: Path, name: str) -> None:
        self.services, self.model = services, model
        self.store = Store(services.file_url(f"store-{name}"))
        self.staging = services.home / "staging" / "staged" / name
        self.run = name
        rows = services.home / f"{name}.jsonl"
        rows.write_text("".join(f'{{"prompt": "{i:02d}+01=", "answer": "{i + 1}"}}\n' for i in range(40)))
        self.dataset = DatasetSpec(name="rows", source=str(rows), sampling=Sampling(max_new_tokens=8))

    def request(self, step: int, *, dataset: DatasetSpec | None = None, **changes: Any) -> EvalRequest:
        folder = self.staging / str(step)
        shutil.copytree(self.model, folder)
        return EvalRequest(
            point=EvalPoint(run=self.run, step=step),
            source=SnapshotSource(path=str(folder), staged=True),
            suite=Suite(name="suite", datasets=(dataset or self.dataset,)),
            fleet=FLEET,
            store_url=self.store.url,
            **changes,
        )

    def submit(self, request: EvalRequest) -> str:
        api = PrefectApi(self.services.stack.prefect_api_url)
        return patiently(lambda: api.create_flow_run(Delivery.of(request, DEPLOYMENT)))

    def record(self, step: int, timeout_s: float = 240) -> EvalReport | SkippedPoint:
        point = EvalPoint(run=self.run, step=step)
        wait_until(lambda: find(self.store, point, "suite") is not None, timeout_s)
        record = find(self.store, point, "suite")
        assert record is not None
        return record

    def nothing_left(self) -> bool:
        staged = [path for path in self.staging.rglob("*") if path.is_file()]
        return not staged and self.store.list("snapshots") == {}


@pytest.fixture
def points(services: RunningStack, model: Path, request: pytest.FixtureRequest) -> Points:
    return Points(services, model, request.node.name.removeprefix("test_").replace("_", "-")[:40].rstrip("-"))


def patiently(call: Callable[[], str]) -> str:
    """As the submission thread does, which tries again on the 503 that Prefect gives while SQLite is locked."""
    for _ in range(60):
        try:
            return call()
        except httpx.HTTPStatusError:
            time.sleep(0.5)
    raise AssertionError("Prefect did not take the flow run")


def wait_until(holds: Callable[[], bool], timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"did not come true within {timeout_s} s"
        time.sleep(0.1)


def state_of(services: RunningStack, run: str) -> dict[str, Any]:
    [flow_run] = services.flow_runs(run)
    return dict(flow_run)


def has_ended(services: RunningStack, run: str) -> bool:
    return state_of(services, run)["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def test_an_invalid_checkpoint_is_a_skipped_run_with_its_reason(services: RunningStack, points: Points) -> None:
    request = points.request(40)
    weights = Path(request.source.path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    points.submit(request)
    record = points.record(40)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "ckpt_invalid"
    assert "model.safetensors" in record.message
    wait_until(lambda: has_ended(services, points.run))
    run = state_of(services, points.run)
    assert (run["state"]["type"], run["state"]["name"]) == ("COMPLETED", "Skipped")
    assert run["state"]["message"].startswith("ckpt_invalid: model.safetensors")
    assert {"skipped:ckpt_invalid", f"run:{points.run}", "step:40", "suite:suite"} <= set(run["tags"])
    wait_until(points.nothing_left)


def test_a_fault_that_is_no_outage_fails_the_run_and_is_recorded(services: RunningStack, points: Points) -> None:
    gone = points.dataset.model_copy(update={"source": str(services.home / "gone.jsonl")})
    points.submit(points.request(3, dataset=gone))
    record = points.record(3)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "crashed"
    assert "gone.jsonl" in record.message
    wait_until(lambda: has_ended(services, points.run))
    assert state_of(services, points.run)["state"]["type"] == "FAILED"
    wait_until(points.nothing_left)


def test_a_skip_of_the_trainer_is_a_run_without_a_process(services: RunningStack, points: Points) -> None:
    request = points.request(2)
    skip = SkippedPoint(
        point=request.point,
        suite="suite",
        reason="busy",
        message="2 points in flight",
        export_time_seconds=0.0,
        finished_at=now(),
    )
    outbox = Outbox(services.home / "outbox-skip")
    submitter = Submitter(outbox, points.store, services.stack.prefect_api_url)
    submitter.submit(Delivery.of(request, DEPLOYMENT, skip), None)
    assert submitter.drained(120)
    submitter.close()
    run = state_of(services, points.run)
    assert (run["state"]["name"], run["state"]["message"]) == ("Skipped", "busy: 2 points in flight")
    assert "skipped:busy" in run["tags"]
    assert run["infrastructure_pid"] is None
    assert points.record(2) == skip


def test_a_point_past_its_deadline_is_a_timeout(services: RunningStack, points: Points) -> None:
    slow = points.dataset.model_copy(update={"sampling": Sampling(max_new_tokens=100), "samples_per_prompt": 200})
    points.submit(points.request(1, dataset=slow, deadline_s=12.0))
    record = points.record(1)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "timeout"
    assert "no report within 12 s" in record.message
    wait_until(points.nothing_left)


def flow_process(flow_run_id: str) -> psutil.Process | None:
    """The process of a flow run, by the id that the runner put into its environment."""
    for process in psutil.process_iter():
        try:
            variables = process.environ()
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if flow_run_id in (variables.get("PREFECT__FLOW_RUN_ID"), variables.get("PREFECT_FLOW_RUN_ID")):
            return process
    return None


def test_a_killed_flow_leaves_a_record_and_no_snapshot(services: RunningStack, points: Points) -> None:
    slow = points.dataset.model_copy(update={"sampling": Sampling(max_new_tokens=100), "samples_per_prompt": 300})
    flow_run_id = points.submit(points.request(5, dataset=slow))
    wait_until(lambda: len(points.store.list("snapshots")) > 0)
    process = flow_process(flow_run_id)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    record = points.record(5)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "crashed"
    wait_until(points.nothing_left)


def test_the_fleet_of_a_killed_flow_serves_the_next_point(services: RunningStack, points: Points) -> None:
    points.submit(points.request(6))
    record = points.record(6)
    assert isinstance(record, EvalReport), record
    wait_until(points.nothing_left)


def test_a_cancelled_flow_leaves_a_record_and_no_snapshot(services: RunningStack, points: Points) -> None:
    slow = points.dataset.model_copy(update={"sampling": Sampling(max_new_tokens=100), "samples_per_prompt": 300})
    flow_run_id = points.submit(points.request(7, dataset=slow))
    wait_until(lambda: len(points.store.list("snapshots")) > 0)
    services.post(f"/flow_runs/{flow_run_id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    record = points.record(7)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "crashed"
    wait_until(points.nothing_left)


def test_a_killed_engine_is_replaced_before_the_next_point(services: RunningStack, points: Points) -> None:
    points.submit(points.request(1))
    first = points.record(1)
    assert isinstance(first, EvalReport)
    engines = [p for p in psutil.process_iter(["cmdline"]) if "infra.engines.embedded" in (p.info["cmdline"] or [])]
    assert engines
    engines[0].kill()
    points.submit(points.request(2))
    second = points.record(2)
    assert isinstance(second, EvalReport), second
    assert len(second.proofs) == 2


def test_the_sweep_frees_what_a_killed_owner_left_and_shows_it(services: RunningStack, points: Points) -> None:
    orphan, held = (new_prefix(EvalPoint(run=points.run, step=step)) for step in (1, 2))
    for prefix, ttl_s in ((orphan, 0.0), (held, 600.0)):
        leases.acquire(points.store, prefix, owner="killed", purpose="export", ttl_s=ttl_s)
        points.store.write(f"{prefix}/model.safetensors", b"12345")
    answer = httpx.get(f"{services.stack.prefect_api_url}/deployments/name/reclaim_orphans/pinpoint", timeout=30).json()
    body = {"parameters": {"store_url": points.store.url}, "tags": [f"run:{points.run}"]}
    patiently(lambda: str(services.post(f"/deployments/{answer['id']}/create_flow_run", body)["id"]))
    wait_until(lambda: has_ended(services, points.run))
    assert set(points.store.list("snapshots")) == {f"{held}/model.safetensors"}
    [artifact] = services.post("/artifacts/filter", {"artifacts": {"key": {"any_": ["reclaimed"]}}, "limit": 1})
    assert "5 bytes freed" in artifact["description"]

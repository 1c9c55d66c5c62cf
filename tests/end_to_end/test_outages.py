"""An outage becomes a skipped point, with its reason where people look; what the point owned is gone on every outcome."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from infra import leases
from infra.model import EvalPoint, EvalReport, FleetSpec, Sampling, SkippedPoint
from infra.records import find, now
from infra.snapshot import new_prefix
from tests.end_to_end.points import Points, has_ended, state_of, wait_until
from tests.services.stack import RunningStack
from tests.services.waiting import patiently
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox
from trainer_integration.submit import Submitter


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


def test_a_suite_that_can_not_be_read_is_a_skipped_run_with_its_reason(services: RunningStack, points: Points) -> None:
    gone = points.dataset.model_copy(update={"source": str(services.home / "gone.jsonl")})
    points.submit(points.request(6, dataset=gone))
    record = points.record(6)
    assert isinstance(record, SkippedPoint)
    assert (record.reason, "gone.jsonl" in record.message) == ("suite_invalid", True)
    wait_until(lambda: has_ended(services, points.run))
    assert state_of(services, points.run)["state"]["name"] == "Skipped"
    wait_until(points.nothing_left)


def test_a_fault_that_is_no_outage_fails_the_run_and_is_recorded(services: RunningStack, points: Points) -> None:
    nowhere = FleetSpec(name="nowhere", engine="sglang", engine_args={"device": "cpu"}, cpus_per_engine=0.1)
    points.submit(points.request(3).model_copy(update={"fleet": nowhere}))
    record = points.record(3)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "crashed"
    assert "can't run SGLang, see engine_python" in record.message
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
    """The process of a flow run, by the id that the runner put into its environment: its children, all younger, have it too."""
    found: list[tuple[float, psutil.Process]] = []
    for process in psutil.process_iter():
        try:
            variables, born = process.environ(), process.create_time()
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if flow_run_id in (variables.get("PREFECT__FLOW_RUN_ID"), variables.get("PREFECT_FLOW_RUN_ID")):
            found.append((born, process))
    return min(found, key=lambda one: one[0])[1] if found else None


def kill_run(services: RunningStack, points: Points, flow_run_id: str, start: int) -> None:
    """Kills the process of its so-manieth start."""

    def is_running() -> bool:
        found = state_of(services, points.run)
        return (found["run_count"], found["state"]["type"]) == (start, "RUNNING")

    wait_until(is_running, 120)
    process = flow_process(flow_run_id)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


def snapshots(points: Points) -> set[str]:
    return {key.split("/")[2] for key in points.store.list("snapshots")}


def test_a_killed_flow_begins_again_and_goes_on_where_it_was(services: RunningStack, points: Points) -> None:
    slow = points.dataset.model_copy(update={"sampling": Sampling(max_new_tokens=100), "samples_per_prompt": 50})
    flow_run_id = points.submit(points.request(4, dataset=slow))
    wait_until(lambda: any("/log/rows/" in key for key in points.store.list(f"runs/{points.run}/points")), 120)
    exported = snapshots(points)
    kill_run(services, points, flow_run_id, 1)

    def ended() -> bool:
        exported.update(snapshots(points))
        return find(points.store, EvalPoint(run=points.run, step=4), "suite") is not None

    wait_until(ended, 240)
    assert len(exported) == 1  # what the first start had sent was not sent again
    record = points.record(4)
    assert isinstance(record, EvalReport), record
    assert record.results[0].n_samples == 40 * 50
    wait_until(lambda: has_ended(services, points.run))
    assert state_of(services, points.run)["run_count"] == 2
    wanted = {"flow_run_id": {"any_": [flow_run_id]}, "type": {"any_": ["progress"]}}
    said = [artifact["description"] for artifact in services.post("/artifacts/filter", {"artifacts": wanted})]
    assert any("from before" in text for text in said), said
    wait_until(points.nothing_left)


def test_a_flow_that_is_killed_twice_leaves_a_record_and_no_snapshot(services: RunningStack, points: Points) -> None:
    slow = points.dataset.model_copy(update={"sampling": Sampling(max_new_tokens=100), "samples_per_prompt": 300})
    flow_run_id = points.submit(points.request(5, dataset=slow))
    wait_until(lambda: len(points.store.list("snapshots")) > 0)
    for start in (1, 2):
        wait_until(lambda: len(points.store.list("snapshots")) > 0)
        kill_run(services, points, flow_run_id, start)
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
    deployment = services.deployment_id("reclaim_orphans/pinpoint")
    body = {"parameters": {"store_url": points.store.url}, "tags": [f"run:{points.run}"]}
    run_id = patiently(lambda: str(services.post(f"/deployments/{deployment}/create_flow_run", body)["id"]))
    wait_until(lambda: has_ended(services, points.run))
    assert set(points.store.list("snapshots")) == {f"{held}/model.safetensors"}
    # Of this run: the one on schedule sweeps the stack's own store, and has an artifact of the same key.
    [artifact] = services.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run_id]}}})
    assert artifact["key"] == "reclaimed"
    assert "5 bytes freed" in artifact["description"]

"""A live model is evaluated on the trainer's own engines, of one version or not at all, while its producer waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from infra.model import EvalReport, ProofLevel, Sampling, SkippedPoint, SkipReason
from infra.records import commit, now
from tests.end_to_end.live_training import FillingProducer, LiveRun, save_secret, update
from tests.end_to_end.points import has_ended, run_name, state_of, wait_until
from tests.engines.launching import RunningEngine, embedded_engine
from tests.services.ports import free_port
from tests.services.stack import RunningStack
from tests.services.waiting import patiently
from trainer_integration.live import DEPLOYMENT
from trainer_integration.outbox import Delivery
from trainer_integration.pause_gate import PauseGate
from trainer_integration.prefect_api import PrefectApi
from trainer_integration.remote_gate import RemoteGate
from trainer_integration.tiny_trainer.config import RolloutConfig, StepInfo, TrainConfig
from trainer_integration.tiny_trainer.loop import train

KEY = "the engines' own key"


@pytest.fixture(scope="module")
def engines(services: RunningStack, model: Path) -> Iterator[list[RunningEngine]]:
    save_secret(services, "engine-key", KEY)
    with ExitStack() as stack:
        started = [stack.enter_context(embedded_engine(model, "--weight-version", "40", api_key=KEY)) for _ in range(2)]
        yield started


@pytest.fixture
def live(services: RunningStack, engines: list[RunningEngine], model: Path, request: pytest.FixtureRequest) -> LiveRun:
    for engine in engines:
        update(engine, model, "40")
    return LiveRun(services, run_name(request), engines, api_key_from="secret:engine-key")


def submit(live: LiveRun, step: int, **changes: object) -> None:
    """As a driver does that does not wait."""
    request, api = live.request(step, **changes), PrefectApi(live.services.stack.prefect_api_url)
    delivery = Delivery(
        deployment=DEPLOYMENT,
        idempotency_key=f"{live.run}/{step}",
        name=request.point.name,
        tags=(f"run:{live.run}",),
        parameters={"request": request.model_dump(mode="json")},
        store_url=request.store_url,
    )
    patiently(lambda: api.create_flow_run(delivery))
    wait_until(lambda: has_ended(live.services, live.run))


def test_a_live_point_is_of_the_label_that_every_engine_reports_while_the_producer_waits(
    services: RunningStack, live: LiveRun
) -> None:
    gate = PauseGate()
    producer = FillingProducer(gate, live.engines[0])
    before = [engine.checksums() for engine in live.engines]
    with producer.running(), live.evaluator(gate) as evaluator:
        wait_until(lambda: len(producer.answers) > 8)
        result = evaluator.evaluate_live(40)
        passed = gate.status.passed
        assert result is not None
        report = result.record
        wait_until(lambda: gate.status.passed > passed + 8)
    assert isinstance(report, EvalReport), report
    assert report == live.record(40)
    assert (report.weight_version, report.snapshot_digest) == ("40", None)
    assert {(proof.level, proof.reported_version) for proof in report.proofs} == {(ProofLevel.LIVE, "40")}
    assert {proof.engine for proof in report.proofs} == {url.removeprefix("http://") for url in live.urls}
    assert (report.results[0].weight_version_mean, report.results[0].mixed_version_ratio) == (40.0, 0.0)
    assert (result.pauses[0].unfinished, result.pauses[0].lapsed) == (0, False)
    assert (producer.failures, producer.finishes()) == ([], {"length"})
    assert [engine.checksums() for engine in live.engines] == before
    wait_until(lambda: has_ended(services, live.run))
    run = state_of(services, live.run)
    assert (run["name"], run["state"]["type"]) == (f"{live.run} · step 000040", "COMPLETED")
    assert {f"run:{live.run}", "step:40", "suite:suite"} <= set(run["tags"])
    assert "engines' own key" not in str(run["parameters"])
    artifacts = services.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    assert any("What it holds was not looked at" in str(artifact["data"]) for artifact in artifacts)


def test_a_weight_update_in_the_middle_is_a_pin_violation_and_training_goes_on(
    services: RunningStack, live: LiveRun, tmp_path: Path
) -> None:
    """The tiny trainer's real producer, which would run far ahead if it did not wait."""
    slow = live.dataset.model_copy(update={"sampling": Sampling(max_new_tokens=60), "samples_per_prompt": 40})
    config = replace(TrainConfig.small(steps=3), rollouts=RolloutConfig(prompts=2, samples=8, queue_size=100_000))
    steps: list[int] = []
    waiting: dict[int, int] = {}
    reopened: dict[int, int] = {}
    records: dict[int, EvalReport | SkippedPoint] = {}
    held = ExitStack()  # between points, so that the buffer has room: what the producer waits at is the gate

    def watch(gate: RemoteGate, step: int) -> None:
        wait_until(lambda: gate.status.closers == 2)
        held.close()
        wait_until(lambda: gate.status.waiting == 1)
        waiting[step] = gate.status.passed
        if step == 2:
            wait_until(lambda: live.engines[1].running() > 8)
            update(live.engines[1], tmp_path / "step-2", "moved")

    def on_step(info: StepInfo) -> None:
        folder = tmp_path / f"step-{info.step}"
        info.model.save_pretrained(folder)
        info.tokenizer.save_pretrained(folder)
        for engine in live.engines:
            update(engine, folder, str(info.step))
        steps.append(info.step)
        gate = RemoteGate(info.gate_url)
        if info.step in (1, 2):
            watching = threading.Thread(target=watch, args=(gate, info.step), daemon=True)
            watching.start()
            with live.evaluator(gate, live.dataset if info.step == 1 else slow) as evaluator:
                result = evaluator.evaluate_live(info.step)
            watching.join()
            assert result is not None
            records[info.step], reopened[info.step] = result.record, gate.status.passed
        if info.step < 3:
            made = gate.status.passed
            wait_until(lambda: gate.status.passed > made + 1)
            held.enter_context(gate.closed(600))

    with held:
        train(config, on_step)
    assert steps == [0, 1, 2, 3]
    assert isinstance(records[1], EvalReport)
    assert records[1].weight_version == "1"
    assert isinstance(records[2], SkippedPoint)
    assert records[2].reason == SkipReason.PIN_VIOLATION
    assert live.urls[1].removeprefix("http://") in records[2].message
    assert "moved" in records[2].message
    assert all(reopened[step] - waiting[step] <= 1 for step in (1, 2)), "the producer made nothing while it waited"


def test_a_flow_that_starts_after_its_driver_has_given_up_asks_no_engine(services: RunningStack, live: LiveRun) -> None:
    given_up = SkippedPoint(
        point=live.request(40).point,
        suite="suite",
        reason="unhealthy",
        message="no runner took it",
        export_time_seconds=0.0,
        finished_at=now(),
    )
    commit(live.store, given_up)
    submit(live, 40, engines=(f"http://127.0.0.1:{free_port()}",))
    run = state_of(services, live.run)
    assert (run["state"]["name"], run["state"]["message"]) == ("Skipped", "unhealthy: no runner took it")
    assert live.record(40) == given_up


def test_a_flow_whose_driver_waits_no_more_is_a_timeout(services: RunningStack, live: LiveRun) -> None:
    submit(live, 41, expires_at=time.time() - 1)
    record = live.record(41)
    assert isinstance(record, SkippedPoint)
    assert (record.reason, state_of(services, live.run)["state"]["name"]) == ("timeout", "Skipped")


def test_engines_that_disagree_before_the_first_prompt_are_a_pin_violation(live: LiveRun, model: Path) -> None:
    update(live.engines[1], model, "41")
    with live.evaluator(PauseGate()) as evaluator:
        result = evaluator.evaluate_live(41)
    assert result is not None
    assert isinstance(result.record, SkippedPoint)
    assert result.record.reason == "pin_violation"
    for engine, label in zip(live.engines, ("40", "41"), strict=True):
        assert f"{engine.base_url.removeprefix('http://')} reports '{label}'" in result.record.message

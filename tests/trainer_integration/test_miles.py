"""Miles' driver calls a dispatcher of the shape it knows, or gives a checkpoint to a class of the shape it knows.

Against stand-ins of its public call shapes (tests/fakes/miles.py).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from infra import records
from infra.errors import ConfigError, EvalSkip
from infra.model import EvalPoint, SkippedPoint
from tests.fakes.miles import ActorGroup, EvalInput, RolloutManager, namespace
from tests.fakes.prefect_server import FakePrefect
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import jsonl, report_at
from tests.services.waiting import until
from tests.trainer_integration.conftest import Trainer
from trainer_integration.adapters import miles, miles_function
from trainer_integration.adapters.miles import EvalDispatcher
from trainer_integration.adapters.miles_function import EvalOutput, PinpointEval
from trainer_integration.pause_gate import PauseGate

FUNCTION = "trainer_integration.adapters.miles_function.PinpointEval"


class Job:
    """Miles' driver over one home folder."""

    def __init__(self, folder: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.trainer = folder, trainer
        self.manager, self.actors = RolloutManager(), ActorGroup(make_checkpoint(folder / "live"))
        self.logged: list[dict[str, float]] = []
        data = jsonl(folder / "d.jsonl", '{"input": "1+1=", "label": "2"}')
        self.snapshots: dict[str, Any] = {"eval_num_gpus": 2, "eval_prompt_data": ["sums", data]}
        self.staged: dict[str, Any] = {**self.snapshots, "eval_hf_dir": str(folder / "staging")}
        for name, value in (
            ("HOME", trainer.settings.home),
            ("PREFECT_API_URL", trainer.settings.prefect_api_url),
            ("STORE_URL", trainer.store.url),
        ):
            monkeypatch.setenv(f"PINPOINT_{name}", str(value))

    def start(self, **changes: Any) -> EvalDispatcher:
        args = namespace(**changes)
        gate = None if args.eval_num_gpus else PauseGate(producer=args.rollout_function_path)
        made = EvalDispatcher(args, self.actors, self.manager, gate=gate, log=self.logged.append)
        self.trainer.stack.callback(made.close)
        return made


@pytest.fixture
def job(tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, trainer, monkeypatch)


def requests(prefect: FakePrefect, count: int) -> list[dict[str, Any]]:
    until(lambda: len(prefect.runs) == count)
    return [run.body["parameters"]["request"] for run in prefect.runs]


async def test_each_dispatch_exports_by_the_actors_and_returns_while_the_point_is_under_way(
    job: Job, prefect: FakePrefect
) -> None:
    dispatcher = job.start(**job.staged)
    await dispatcher.dispatch(4)
    await dispatcher.dispatch(99)
    first, last = requests(prefect, 2)
    assert [rollout_id for rollout_id, _ in job.actors.exported] == [4, 99]
    assert (first["point"]["step"], first["point"]["final"], last["point"]["final"]) == (4, False, True)
    assert first["source"]["path"] == job.actors.exported[0][1]
    assert first["source"]["path"].startswith(job.staged["eval_hf_dir"])
    assert (first["keep_snapshots"], first["fleet"]["num_gpus"], first["fleet"]["engine"]) == (2, 2, "sglang")
    assert first["fleet"]["rollout_engine_args"] == {"dtype": "bfloat16", "tp_size": 2}
    assert job.manager.skips == []


async def test_the_baseline_is_the_checkpoint_that_training_starts_from_and_rollout_0_is_another_point(
    job: Job, prefect: FakePrefect
) -> None:
    dispatcher = job.start(**job.staged, hf_checkpoint="/models/base")
    await dispatcher.dispatch(0, hf_dir="/models/base")
    await dispatcher.dispatch(0)
    baseline, first = requests(prefect, 2)
    assert (baseline["source"]["path"], baseline["source"]["staged"]) == ("/models/base", False)
    assert (first["source"]["staged"], len(job.actors.exported)) == (True, 1)
    assert [each["point"]["step"] for each in (baseline, first)] == [0, 0]
    assert baseline["point"]["attempt"] != first["point"]["attempt"]


async def test_checkpoints_that_are_saved_anyway_are_taken_as_they_are(job: Job, prefect: FakePrefect) -> None:
    dispatcher = job.start(**job.snapshots, save_hf="/saved/{rollout_id}", save_interval=5)
    await dispatcher.dispatch(4)  # Miles counts rollouts from 0: the fifth
    (request,) = requests(prefect, 1)
    assert (request["source"]["path"], request["source"]["staged"]) == ("/saved/4", False)
    assert job.actors.exported == []


async def test_a_failing_export_is_reported_and_training_goes_on(job: Job, prefect: FakePrefect) -> None:
    dispatcher = job.start(**job.staged)
    job.actors.fails = RuntimeError("rank 3 has no room")
    await dispatcher.dispatch(4)
    assert job.manager.skips == [(4, "export_failed")]
    assert list((job.folder / "staging").glob("staged/*/*")) == []
    job.actors.fails = None
    await dispatcher.dispatch(9)
    until(lambda: len(prefect.runs) == 2)
    assert job.manager.skips == [(4, "export_failed")]


async def test_an_export_that_hangs_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(rollout_id: int, hf_dir: str) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(miles, "EXPORT_TIMEOUT_S", 0.05)
    dispatcher = job.start(**job.staged)
    job.actors.export_hf = hangs  # type: ignore[method-assign]
    await dispatcher.dispatch(4)
    assert job.manager.skips == [(4, "export_failed")]


async def test_at_the_cap_a_point_is_reported_as_busy_unless_it_is_forced(job: Job) -> None:
    dispatcher = job.start(**job.staged, eval_max_in_flight=1, eval_overflow_policy="skip")
    await dispatcher.dispatch(4)
    await dispatcher.dispatch(9)
    await dispatcher.dispatch(14, force=True)
    assert job.manager.skips == [(9, "busy")]
    assert [rollout_id for rollout_id, _ in job.actors.exported] == [4, 14]


async def test_what_ends_later_is_logged_at_its_own_step_or_reported_once(job: Job, prefect: FakePrefect) -> None:
    dispatcher = job.start(**job.staged, eval_max_in_flight=4)
    job.actors.fails = RuntimeError("no room")
    await dispatcher.dispatch(4)
    job.actors.fails = None
    for rollout_id in (9, 14):
        await dispatcher.dispatch(rollout_id)
    until(lambda: len(prefect.runs) == 3)
    report = report_at(9)
    records.commit(job.trainer.store, type(report)(**{**_fields(report), "suite": "eval"}))
    next(run for run in prefect.runs if "step:14" in run.body["tags"]).end("Crashed")
    assert await dispatcher.drain(10)
    assert await dispatcher.drain()
    assert job.manager.skips == [(4, "export_failed"), (14, "crashed")]
    assert {metrics["eval/step"]: metrics.get("eval/sums") for metrics in job.logged} == {4.0: None, 9.0: 0.5, 14.0: None}


def _fields(report: Any) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__dataclass_fields__}


async def test_drain_does_not_wait_beyond_its_deadline(job: Job) -> None:
    dispatcher = job.start(**job.staged)
    await dispatcher.dispatch(4)
    assert not await dispatcher.drain(0.05)


async def test_a_rollout_manager_that_died_does_not_end_the_training(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = job.start(**job.staged)
    job.actors.fails, job.manager.deaf = RuntimeError("no room"), True
    with caplog.at_level(logging.ERROR):
        await dispatcher.dispatch(4)
    assert "the skip of rollout 4, export_failed, could not be reported" in caplog.text


async def test_a_tracker_that_is_away_costs_no_point(job: Job, prefect: FakePrefect) -> None:
    def away(metrics: dict[str, float]) -> None:
        raise ConnectionError("the tracker is away")

    dispatcher = job.start(**job.staged)
    dispatcher.log, job.actors.fails = away, RuntimeError("no room")
    await dispatcher.dispatch(4)
    until(lambda: dispatcher._core is not None and dispatcher._core.records)
    job.actors.fails = None
    await dispatcher.dispatch(9)
    assert [rollout_id for rollout_id, _ in job.actors.exported] == [9]
    assert job.manager.skips == [(4, "export_failed")]


async def test_a_rollout_manager_that_hangs_holds_up_neither_a_dispatch_nor_the_end(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging:
        def remote(self, rollout_id: int, reason: str) -> asyncio.Future[None]:
            return asyncio.get_running_loop().create_future()

    for name, seconds in (("REPORT_WAIT_S", 0.1), ("REPORT_TIMEOUT_S", 5.0)):
        monkeypatch.setattr(miles, name, seconds)
    monkeypatch.setattr(RolloutManager, "report_eval_skip", Hanging())
    dispatcher = job.start(**job.staged)
    job.actors.fails = RuntimeError("no room")
    started = time.monotonic()
    for rollout_id in (4, 9):
        await dispatcher.dispatch(rollout_id)
    assert time.monotonic() - started < 5  # as long as one of the two reports may take
    await dispatcher.drain(10)
    assert time.monotonic() - started < 15
    assert not dispatcher._reports


@pytest.mark.parametrize("gate", [None, PauseGate(producer="another.function")])
def test_a_live_evaluation_beside_the_producer_that_fills_its_engines_is_refused(job: Job, gate: PauseGate | None) -> None:
    with pytest.raises(ConfigError, match="miles.rollout.generate"):
        EvalDispatcher(namespace(), job.actors, job.manager, gate=gate)


async def test_a_training_without_evaluation_needs_no_gate_until_it_asks_for_one(job: Job) -> None:
    dispatcher = EvalDispatcher(namespace(eval_interval=None), job.actors, job.manager)
    job.trainer.stack.callback(dispatcher.close)
    await dispatcher.dispatch(4)
    assert (job.manager.evaluated, job.manager.skips) == ([], [(4, "crashed")])


async def test_without_engines_of_its_own_the_trainers_evaluation_is_awaited(job: Job) -> None:
    dispatcher = job.start()
    await dispatcher.dispatch(4)
    assert job.manager.evaluated == [4]
    job.manager.fails = RuntimeError("an engine died")
    await dispatcher.dispatch(9)
    assert job.manager.skips == [(9, "crashed")]
    assert await dispatcher.drain()


async def test_a_live_evaluation_is_behind_the_producers_gate_which_reopens_on_every_outcome(job: Job) -> None:
    gate, seen = PauseGate(), list[bool]()
    job.manager.while_evaluating = lambda: seen.append(gate.status.open)
    dispatcher = EvalDispatcher(namespace(), job.actors, job.manager, gate=gate)
    for fails in (None, RuntimeError("an engine died")):
        job.manager.fails = fails
        await dispatcher.dispatch(4)
        assert gate.status.open
    dispatcher.close()
    assert seen == [False, False]


async def test_a_live_evaluation_that_hangs_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging:
        def remote(self, rollout_id: int) -> asyncio.Future[None]:
            return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(miles, "LIVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(RolloutManager, "eval", Hanging())
    await job.start().dispatch(4)
    assert job.manager.skips == [(4, "timeout")]


async def skipped_at(job: Job, prefect: FakePrefect, step: int, attempt: int = 0) -> SkippedPoint:
    """The record of that step, when it has one and is in the UI."""
    point = EvalPoint(run="run", step=step, attempt=attempt)
    await asyncio.to_thread(until, lambda: any(f"step:{step}" in run.body["tags"] for run in prefect.runs))
    record = records.find(job.trainer.store, point, "eval")
    assert isinstance(record, SkippedPoint)
    return record


async def test_a_live_point_that_is_not_measured_is_in_the_store_the_ui_and_the_metrics_as_any_other(
    job: Job, prefect: FakePrefect
) -> None:
    dispatcher = job.start()
    job.manager.fails = RuntimeError("an engine died")
    await dispatcher.dispatch(4)
    job.manager.fails = TimeoutError()
    await dispatcher.dispatch(9)
    crashed, timeout = await skipped_at(job, prefect, 4), await skipped_at(job, prefect, 9)
    assert (crashed.reason, crashed.message) == ("crashed", "RuntimeError: an engine died")
    assert (timeout.reason, timeout.point.step) == ("timeout", 9)
    assert [run.state["name"] for run in prefect.runs] == ["Skipped", "Skipped"]
    assert job.manager.skips == [(4, "crashed"), (9, "timeout")]
    skips = [metrics for metrics in job.logged if "eval/gate_lapsed" not in metrics]
    assert [
        {"eval/step", f"eval/skipped_{reason}"} <= set(skip) for reason, skip in zip(("crashed", "timeout"), skips, strict=True)
    ] == [True, True]
    assert await dispatcher.drain(5)


async def test_a_live_point_whose_driver_ends_while_it_waits_is_recorded(job: Job, prefect: FakePrefect) -> None:
    waiting = asyncio.Event()

    class Hanging:
        def remote(self, rollout_id: int) -> asyncio.Future[None]:
            waiting.set()
            return asyncio.get_running_loop().create_future()

    dispatcher = job.start()
    job.manager = dispatcher.rollout_manager = type("Manager", (), {"eval": Hanging()})()
    asked = asyncio.create_task(dispatcher.dispatch(4))
    await waiting.wait()
    assert [file.suffix for file in (job.trainer.settings.home / "outbox").glob("*.intent")] == [".intent"]
    asked.cancel()
    record = await skipped_at(job, prefect, 4)
    assert (record.reason, record.message) == ("crashed", "the driver ended while it waited for the trainer's own evaluation")


async def test_of_a_live_point_that_is_measured_nothing_is_left(job: Job, prefect: FakePrefect) -> None:
    dispatcher = job.start()
    await dispatcher.dispatch(4)
    assert await dispatcher.drain(5)
    assert (job.trainer.outbox, prefect.runs) == ([], [])
    assert job.logged == [{"eval/step": 4.0, "eval/gate_lapsed": 0.0}]


async def test_a_store_or_a_home_that_is_gone_keeps_no_live_evaluation_from_being_awaited(job: Job) -> None:
    dispatcher = job.start()
    (job.trainer.settings.home / "outbox").rename(job.folder / "gone")
    await dispatcher.dispatch(4)
    job.manager.fails = RuntimeError("an engine died")
    await dispatcher.dispatch(9)
    assert (job.manager.evaluated, job.manager.skips) == ([4], [(9, "crashed")])


def test_a_live_run_without_a_name_for_its_points_is_refused(job: Job) -> None:
    with pytest.raises(ConfigError, match="--eval-run"):
        job.start(wandb_group=None)


def test_a_gate_that_opens_within_a_live_evaluation_is_refused(job: Job) -> None:
    with pytest.raises(ConfigError, match=r"opens by itself after 60 s.*max_closed_s=3600"):
        EvalDispatcher(namespace(), job.actors, job.manager, gate=PauseGate(max_closed_s=60))


async def test_a_gate_that_was_open_before_a_live_evaluation_had_ended_is_told(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    gate = PauseGate(clock=lambda: now[0])

    def lasts() -> None:
        now[0] += 3601

    job.manager.while_evaluating = lasts
    dispatcher = EvalDispatcher(namespace(), job.actors, job.manager, gate=gate, log=job.logged.append)
    job.trainer.stack.callback(dispatcher.close)
    with caplog.at_level(logging.WARNING):
        await dispatcher.dispatch(4)
    assert job.logged == [{"eval/step": 4.0, "eval/gate_lapsed": 1.0}]
    assert "the gate was open again before the evaluation at rollout 4 had ended" in caplog.text


def test_a_black_box_is_left_to_the_trainers_own_dispatcher(job: Job) -> None:
    with pytest.raises(ConfigError, match="run by the trainer's own dispatcher"):
        job.start(eval_function_path=FUNCTION, eval_hf_dir="/x")


def function(job: Job) -> PinpointEval:
    data = job.snapshots["eval_prompt_data"]
    args = namespace(eval_function_path=FUNCTION, eval_hf_dir="/x", eval_prompt_data=data)
    made = PinpointEval(type("ConstructorInput", (), {"args": args})())
    job.trainer.stack.callback(made.dispose)
    return made


def test_the_function_without_data_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="nothing to evaluate on: set --eval-prompt-data or --eval-config"):
        PinpointEval(namespace(eval_function_path=FUNCTION, eval_hf_dir="/x"))


async def test_the_function_gives_back_what_was_measured_of_the_checkpoint_it_was_given(job: Job, prefect: FakePrefect) -> None:
    evaluate = function(job)
    report = report_at(4)
    records.commit(job.trainer.store, type(report)(**{**_fields(report), "suite": "eval"}))
    output = await evaluate(EvalInput(4, str(job.actors.checkpoint)))
    assert isinstance(output, EvalOutput)
    assert (output.metrics["eval/sums"], "eval/step" in output.metrics) == (0.5, False)
    (request,) = requests(prefect, 1)
    assert (request["source"]["path"], request["source"]["staged"]) == (str(job.actors.checkpoint), False)
    assert job.actors.checkpoint.is_dir()


async def test_a_point_that_can_not_be_measured_raises_its_reason(job: Job, prefect: FakePrefect) -> None:
    evaluate = function(job)
    asked = asyncio.create_task(evaluate.evaluate_checkpoint("/saved/4", EvalInput(4, "/saved/4")))
    await asyncio.to_thread(until, lambda: prefect.runs)
    prefect.runs[0].end("Crashed")
    with pytest.raises(EvalSkip) as raised:
        await asked
    assert raised.value.reason == "crashed"
    assert records.find(job.trainer.store, EvalPoint(run="run", step=4), "eval") is not None


def test_where_miles_is_installed_its_own_classes_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("miles.rollout.checkpoint_eval")
    theirs = type("EvalSkip", (Exception,), {})
    module.EvalSkip = theirs  # type: ignore[attr-defined]
    for name in ("miles", "miles.rollout"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "miles.rollout.checkpoint_eval", module)
    assert isinstance(miles_function._skip("busy"), theirs)

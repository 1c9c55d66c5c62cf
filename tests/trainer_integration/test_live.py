"""A driver evaluates its live model by waiting for it; the gate reopens on every outcome, and nothing is raised."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from infra import records
from infra.config import Settings
from infra.errors import ConfigError, StoreUnreachable
from infra.model import EvalPoint, EvalReport, LiveRequest, SkippedPoint, Suite
from infra.store import Store
from tests.fakes.prefect_server import FakePrefect, FlowRun
from tests.infra.examples import REPORT, dataset
from tests.services.ports import free_port
from tests.services.waiting import until
from tests.trainer_integration.conftest import SUITE
from trainer_integration import attempts, exchange
from trainer_integration.deliver import deliver_left
from trainer_integration.exchange import GivenUp, Heard, Patience
from trainer_integration.gate_server import serve_gate
from trainer_integration.live import LiveEvaluator, LiveResult, LiveSettings
from trainer_integration.pause_gate import PauseGate
from trainer_integration.remote_gate import RemoteGate

ROOT = Path(__file__).parents[2]
ENGINES = ("http://127.0.0.1:30000", "http://127.0.0.1:30001")
PATIENCE = {"silence_s": 30.0, "start_timeout_s": 30.0, "settle_s": 0.2, "deadline_s": 60.0}
IMPATIENT = {"silence_s": 0.6, "start_timeout_s": 0.6, "deadline_s": 5.0}


class Driver:
    """Starts evaluators over one home folder; `flow` is what the flow would do."""

    def __init__(self, folder: Path, prefect: FakePrefect, stack: ExitStack) -> None:
        self.prefect, self.stack = prefect, stack
        self.settings = Settings(home=folder / "home", staging_dir=folder / "staging", prefect_api_url=prefect.api_url)
        self.store = Store(self.settings.store)
        self.gate = PauseGate()

    def start(self, gate: Any = None, **changes: Any) -> LiveEvaluator:
        live = LiveSettings(**{"run": "run", "suite": SUITE, "engines": ENGINES, **PATIENCE, **changes})
        made = LiveEvaluator(live, self.settings, self.gate if gate is None else gate)
        self.stack.callback(made.close)
        return made

    def flow(self, act: Callable[[], None]) -> None:
        """Does `act` as soon as a flow run was asked for."""

        def run() -> None:
            until(lambda: self.asked_for)
            act()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.stack.callback(thread.join, 5)

    @property
    def asked_for(self) -> list[FlowRun]:
        """The flow runs that are no skips."""
        return [run for run in self.prefect.runs if "state" not in run.body]

    def report(self, version: str = "40") -> None:
        run = self.asked_for[-1]
        request = LiveRequest.model_validate(run.body["parameters"]["request"])
        made = EvalReport(
            **{name: getattr(REPORT, name) for name in EvalReport.__slots__}
            | {"point": request.point, "snapshot_digest": None, "weight_version": version}
        )
        records.commit(self.store, made)
        run.end("Completed")

    def recorded(self, step: int, attempt: int = 0) -> EvalReport | SkippedPoint:
        point = EvalPoint(run="run", step=step, attempt=attempt)
        until(lambda: records.find(self.store, point, "suite") is not None)
        found = records.find(self.store, point, "suite")
        assert found is not None
        return found


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "POLL_S", 0.02)
    monkeypatch.setattr(exchange, "RECORD_GRACE_S", 0.2)


@pytest.fixture
def driver(tmp_path: Path, prefect: FakePrefect) -> Iterator[Driver]:
    with ExitStack() as stack:
        yield Driver(tmp_path, prefect, stack)


def skip_of(result: LiveResult | None) -> SkippedPoint:
    assert result is not None
    assert isinstance(result.record, SkippedPoint), result
    return result.record


def test_the_driver_waits_for_the_report_while_the_gate_is_closed_and_it_is_open_afterwards(driver: Driver) -> None:
    seen: list[bool] = []

    def act() -> None:
        seen.append(driver.gate.status.open)
        driver.report()

    driver.flow(act)
    result = driver.start().evaluate_live(40)
    assert result is not None
    assert result.record == driver.recorded(40)
    assert (seen, driver.gate.status.open) == ([False], True)
    assert result.metrics.items() >= {"eval/step": 40.0, "eval/sums": 0.5, "eval/gate_lapsed": 0.0}.items()
    [run] = driver.prefect.runs
    assert run.body["idempotency_key"].startswith("evaluate/run/step00000040-a0/suite/")
    assert (run.body["name"], run.body["tags"]) == ("run · step 000040", ["run:run", "step:40", "suite:suite"])


@contextmanager
def remote_gate(gate: PauseGate) -> Iterator[RemoteGate]:
    with serve_gate(gate) as url:
        remote = RemoteGate(url)
        yield remote
        remote.close()


def test_a_remote_gate_that_opens_within_an_evaluation_is_refused_like_one_that_is_here(driver: Driver) -> None:
    early = PauseGate(max_closed_s=1.0)
    with remote_gate(early) as remote:
        for gate in (early, remote):
            with pytest.raises(ConfigError, match="opens by itself after 1 s"):
                driver.start(gate)


def test_one_that_could_not_be_asked_before_is_refused_when_it_can(driver: Driver) -> None:
    port = free_port()
    remote = RemoteGate(f"http://127.0.0.1:{port}")
    evaluator = driver.start(remote)
    with serve_gate(PauseGate(max_closed_s=1.0), port=port):
        skipped = skip_of(evaluator.evaluate_live(40))
    assert (skipped.reason, "opens by itself after 1 s" in skipped.message) == ("crashed", True)
    remote.close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_gate_that_was_open_before_the_evaluation_had_ended_is_told(
    driver: Driver, elsewhere: bool, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    gate = PauseGate(clock=lambda: now[0])

    def act() -> None:
        now[0] += 3601
        driver.report()

    driver.flow(act)
    with remote_gate(gate) as remote, caplog.at_level(logging.WARNING):
        result = driver.start(remote if elsewhere else gate).evaluate_live(40)
    assert result is not None
    assert result.metrics["eval/gate_lapsed"] == 1.0
    assert "the gate was open again before the evaluation of run · step 000040 had ended" in caplog.text


def test_no_key_of_an_engine_is_ever_a_parameter(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "very-secret")
    driver.flow(driver.report)
    driver.start(api_key_from="env:ENGINE_KEY").evaluate_live(40)
    assert driver.prefect.runs[0].body["parameters"]["request"]["api_key_from"] == "env:ENGINE_KEY"
    assert "very-secret" not in str(driver.prefect.requests)
    for wrong in ({"engines": ("http://me:very-secret@host:1",)}, {"api_key_from": "very-secret"}):
        with pytest.raises(ConfigError) as refusal:
            driver.start(**wrong)
        assert "engines" in str(refusal.value) or "api_key_from" in str(refusal.value)


@pytest.mark.parametrize("bad", ["down", "hung", "failing", "unknown"])
def test_a_prefect_that_is_down_hung_or_failing_reopens_the_gate_in_time_and_the_point_is_skipped(
    driver: Driver, prefect: FakePrefect, bad: str
) -> None:
    evaluator = driver.start(**IMPATIENT)
    if bad == "down":
        prefect.stop()
    prefect.hung, prefect.failing = bad == "hung", 503 if bad == "failing" else None
    prefect.registered = bad != "unknown"
    started = time.monotonic()
    skip = skip_of(evaluator.evaluate_live(40))
    assert time.monotonic() - started < 3
    assert driver.gate.status.open
    assert (skip.reason, "Prefect has not answered for" in skip.message) == ("unhealthy", True)
    assert driver.recorded(40) == skip


def test_the_skip_is_a_run_in_the_ui_when_prefect_is_back(driver: Driver, prefect: FakePrefect) -> None:
    evaluator = driver.start(**IMPATIENT)
    prefect.stop()
    evaluator.evaluate_live(40)
    prefect.start()
    until(lambda: prefect.runs)
    [run] = prefect.runs
    assert (run.state["name"], "skipped:unhealthy" in run.body["tags"]) == ("Skipped", True)


def test_a_prefect_that_refuses_makes_a_skipped_point_at_once(driver: Driver, prefect: FakePrefect) -> None:
    prefect.refusing = 409
    skip = skip_of(driver.start().evaluate_live(40))
    assert (skip.reason, driver.gate.status.open) == ("crashed", True)
    assert "refused" in skip.message
    asked = [body for _, path, body in prefect.requests if path.endswith("create_flow_run")]
    assert len([body for body in asked if "state" not in body]) == 1  # the point is over: nothing is asked for any more


def test_a_flow_run_that_no_runner_takes_is_not_waited_for(driver: Driver) -> None:
    skip = skip_of(driver.start(start_timeout_s=0.6).evaluate_live(40))
    assert (skip.reason, driver.gate.status.open) == ("unhealthy", True)
    assert "no runner took flow run" in skip.message


def test_a_flow_that_ends_without_a_record_makes_a_skipped_point(driver: Driver) -> None:
    driver.flow(lambda: driver.prefect.runs[0].end("Crashed"))
    skip = skip_of(driver.start().evaluate_live(40))
    assert (skip.reason, driver.gate.status.open) == ("crashed", True)


def test_a_flow_that_takes_too_long_is_a_timeout_and_learns_when_to_end(driver: Driver) -> None:
    driver.flow(lambda: driver.prefect.runs[0].end("Running"))
    before = time.time()
    skip = skip_of(driver.start(deadline_s=0.5).evaluate_live(40))
    assert (skip.reason, driver.gate.status.open) == ("timeout", True)
    expires_at = driver.prefect.runs[0].body["parameters"]["request"]["expires_at"]
    assert before + 0.5 < expires_at < time.time()


def test_a_store_that_hangs_reopens_the_gate_in_time(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, released = driver.start(silence_s=2.0), threading.Event()
    monkeypatch.setattr(exchange, "find", lambda *_: released.wait(20))
    driver.flow(lambda: driver.prefect.runs[0].end("Running"))
    started = time.monotonic()
    skip = skip_of(evaluator.evaluate_live(40))
    released.set()
    assert time.monotonic() - started < 10
    assert driver.gate.status.open
    assert "the store has not answered" in skip.message


def test_a_bug_of_ours_is_a_skipped_point_and_the_gate_is_open(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = driver.start()

    def bug(*_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(exchange.Exchange, "outcome", bug)
    skip = skip_of(evaluator.evaluate_live(40))
    assert (skip.reason, driver.gate.status.open) == ("crashed", True)
    assert "KeyError" in skip.message


def test_a_gate_that_cannot_be_closed_makes_a_skipped_point_and_the_others_reopen(driver: Driver) -> None:
    gone = RemoteGate(f"http://127.0.0.1:{free_port()}")
    skip = skip_of(driver.start([driver.gate, gone]).evaluate_live(40))
    assert (skip.reason, driver.gate.status.open) == ("unhealthy", True)
    until(lambda: driver.prefect.runs)
    assert [run.state["name"] for run in driver.prefect.runs] == ["Skipped"], "no flow was asked for"


def test_the_evaluation_goes_on_beside_submissions_that_do_not_end_in_time(driver: Driver) -> None:
    driver.gate.enter()
    driver.flow(driver.report)
    result = driver.start().evaluate_live(40)
    assert result is not None
    assert isinstance(result.record, EvalReport)
    assert result.metrics["eval/rollouts_unfinished"] == 1.0


async def test_the_event_loop_goes_on_and_with_it_a_producer_that_is_on_it(driver: Driver) -> None:
    async def under_way() -> None:
        async with driver.gate.submission():
            await asyncio.sleep(0.1)

    producing = asyncio.create_task(under_way())
    await asyncio.sleep(0)
    driver.flow(driver.report)
    result = await driver.start(settle_s=5.0).evaluate_live_async(40)
    assert producing.done()
    assert result is not None
    assert result.metrics["eval/rollouts_unfinished"] == 0.0


async def test_a_driver_that_is_cancelled_reopens_the_gate(driver: Driver) -> None:
    waiting = asyncio.create_task(driver.start(start_timeout_s=30.0).evaluate_live_async(40))
    await asyncio.to_thread(until, lambda: driver.prefect.runs)
    assert not driver.gate.status.open
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(2), driver.gate.submission():
        pass
    assert "cancelled" in skip_message(await asyncio.to_thread(driver.recorded, 40))


def skip_message(record: EvalReport | SkippedPoint) -> str:
    assert isinstance(record, SkippedPoint)
    return record.message


def test_a_step_that_is_asked_for_again_is_another_attempt(driver: Driver, prefect: FakePrefect) -> None:
    evaluator = driver.start()
    prefect.refusing = 409
    skip_of(evaluator.evaluate_live(40))
    prefect.refusing = None
    driver.flow(driver.report)
    result = evaluator.evaluate_live(40, final=True)
    assert result is not None
    assert isinstance(result.record, EvalReport), result
    assert (result.record.point.attempt, result.record.point.final) == (1, True)


def test_without_the_store_it_is_still_another_attempt(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = driver.start(start_timeout_s=0.6)
    evaluator._asked.add(40)

    def down(*_: object) -> int:
        raise StoreUnreachable("away")

    monkeypatch.setattr(attempts, "next_attempt", down)
    assert skip_of(evaluator.evaluate_live(40)).point.attempt > 1_000_000


def test_a_store_that_hangs_does_not_hold_up_another_attempt(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator, released = driver.start(), threading.Event()
    evaluator._asked.add(40)
    monkeypatch.setattr(attempts, "next_attempt", lambda *_: released.wait(20))
    driver.flow(driver.report)
    started = time.monotonic()
    result = evaluator.evaluate_live(40)
    released.set()
    assert time.monotonic() - started < 10
    assert result is not None
    assert isinstance(result.record, EvalReport)
    assert result.record.point.attempt > 1_000_000


def test_a_label_that_stands_still_while_training_goes_on_is_warned_of(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = driver.start()
    for step in (10, 20):
        driver.prefect.runs.clear()
        driver.flow(partial(driver.report, "default"))
        evaluator.evaluate_live(step)
    assert "report version default at step 20 as they did at step 10" in caplog.text


def test_a_gate_of_another_producer_is_refused_before_training(driver: Driver) -> None:
    with pytest.raises(ConfigError, match="the gate pauses other, but rollouts.generate fills the engines"):
        driver.start(PauseGate(producer="other"), rollout_function_path="rollouts.generate")
    with pytest.raises(ConfigError, match="nothing would be paused"):
        driver.start(())


def test_a_chat_template_that_is_nowhere_is_refused_before_training(driver: Driver) -> None:
    chat = Suite(name="suite", datasets=(dataset(apply_chat_template=True),))
    with pytest.raises(ConfigError, match="datasets sums apply the chat template: say where it is with 'tokenizer'"):
        driver.start(suite=chat)


@pytest.mark.parametrize(
    ("heard", "reason"),
    [
        ({}, None),
        ({"prefect_at": 70.0}, "unhealthy"),
        ({"store_at": 70.0}, "unhealthy"),
        ({"state": "SCHEDULED", "since": 0.0}, "unhealthy"),
        ({"state": "PENDING", "since": 0.0}, "unhealthy"),
        ({"state": "RUNNING", "since": 0.0}, None),
        ({"state": "RUNNING", "since": -300.0}, "timeout"),
        ({"state": "CRASHED", "ended_at": 99.9}, None),
        ({"state": "CRASHED", "ended_at": 90.0}, "crashed"),
        ({"refused": "409"}, "crashed"),
    ],
)
def test_when_it_gives_up(heard: dict[str, Any], reason: str | None) -> None:
    known = Heard(**{"since": 99.0, "prefect_at": 99.0, "store_at": 99.0, "state": "RUNNING", **heard})
    verdict = known.verdict(100.0, Patience(deadline_s=300.0, start_timeout_s=60.0, silence_s=20.0))
    assert (verdict.reason if isinstance(verdict, GivenUp) else None) == reason


@pytest.mark.slow
def test_a_driver_that_is_killed_while_it_waits_for_submissions_leaves_a_skipped_point(driver: Driver) -> None:
    home = driver.settings.home
    command = [sys.executable, "-m", "tests.services.dying_driver", str(home), driver.prefect.api_url]
    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == -9
    assert driver.prefect.runs == []
    (settled,) = deliver_left(driver.settings, 10.0).settled
    skip = driver.recorded(40)
    assert isinstance(skip, SkippedPoint)
    assert (settled.skip, skip.reason) == (skip, "crashed")
    assert "the driver ended before it had asked for the evaluation" in skip.message
    assert driver.prefect.names == ["run · step 000040"]


def test_an_intent_of_a_live_point_is_there_until_it_has_its_flow_run(driver: Driver) -> None:
    folder, seen = driver.settings.home / "outbox-live", list[bool]()

    class Watched(PauseGate):
        def unfinished(self, wait_s: float = 0.0) -> int:
            seen.append(bool(list(folder.glob("*.intent"))))
            return 0

    def act() -> None:
        until(lambda: not list(folder.glob("*.intent")))
        driver.report()

    driver.flow(act)
    result = driver.start(Watched()).evaluate_live(40)
    assert result is not None
    assert isinstance(result.record, EvalReport)
    assert set(seen) == {True}


def test_a_skip_that_can_not_be_written_is_recorded_all_the_same(driver: Driver) -> None:
    evaluator = driver.start(**IMPATIENT)
    folder = driver.settings.home / "outbox-live"
    folder.rmdir()
    folder.write_text("a file in the way")
    driver.prefect.failing = 503
    skip = skip_of(evaluator.evaluate_live(40))
    assert driver.recorded(40) == skip
    driver.prefect.failing = None
    until(lambda: driver.prefect.runs)

"""Evaluation is asked for from the training loop and never disturbs it: nothing raises, and waits are bounded."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra import records
from infra.config import Settings
from infra.errors import ConfigError, StoreError
from infra.model import EvalPoint, SkippedPoint
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import report_at
from tests.services.waiting import until
from tests.trainer_integration.conftest import PROMPT_S, SUITE, Exporter, Trainer
from tests.trainer_integration.test_submit import AWAY, break_
from trainer_integration import bounded, prefect_api
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher


def test_a_step_that_is_not_due_does_nothing(trainer: Trainer) -> None:
    assert trainer.start().on_step(9) is None
    assert trainer.export.folders == []


@pytest.mark.parametrize("how", ["up", *AWAY])
def test_on_step_returns_at_once_whatever_prefect_does(
    trainer: Trainer, prefect: FakePrefect, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_api, "TIMEOUT", 10 * PROMPT_S)
    break_(prefect, how)
    dispatcher = trainer.start()
    for step in (10, 20, 30):
        started = time.monotonic()
        dispatched = dispatcher.on_step(step)
        assert time.monotonic() - started < PROMPT_S
        assert dispatched is not None
        assert dispatched.skipped is None
    assert len(trainer.staged) == 3
    prefect.stop()  # lets the hung one go


def test_what_the_loop_waited_for_is_measured_and_travels_with_the_request(trainer: Trainer, prefect: FakePrefect) -> None:
    class Slow(Exporter):
        def __call__(self, folder: Path) -> None:
            time.sleep(0.1)
            super().__call__(folder)

    trainer.export = Slow()
    dispatched = trainer.start().on_step(10)
    assert dispatched is not None
    assert 0.1 <= dispatched.export_time_seconds < 2
    until(lambda: prefect.runs)
    assert prefect.runs[0].body["parameters"]["request"]["export_time_seconds"] == dispatched.export_time_seconds


def test_with_skip_a_due_step_at_the_cap_is_recorded_as_busy_before_any_export(trainer: Trainer) -> None:
    dispatcher = trainer.start(max_in_flight=2, overflow_policy="skip")
    results = [dispatcher.on_step(step) for step in (10, 20, 30, 40)]
    assert [r.skipped for r in results if r] == [None, None, "busy", "busy"]
    assert len(trainer.export.folders) == 2
    until(lambda: len(records.history(trainer.store, "run")) == 2)
    for record in records.history(trainer.store, "run"):
        assert isinstance(record, SkippedPoint)
        assert record.reason == "busy"
        assert "2 points in flight, max_in_flight is 2" in record.message
    assert [r.point.step for r in records.history(trainer.store, "run")] == [30, 40]


def test_with_skip_there_is_room_again_when_a_point_has_ended(trainer: Trainer) -> None:
    dispatcher = trainer.start(max_in_flight=1, overflow_policy="skip")
    dispatcher.on_step(10)
    records.commit(trainer.store, report_at(10))
    until(lambda: dispatcher.desk.submitter.watch.in_flight == 0)
    later = dispatcher.on_step(20)
    assert later is not None
    assert later.skipped is None


@pytest.mark.parametrize("policy", ["skip", "backpressure"])
def test_the_final_point_is_never_skipped(trainer: Trainer, policy: str) -> None:
    dispatcher = trainer.start(max_in_flight=1, overflow_policy=policy, backpressure_timeout_s=0.05)
    dispatcher.on_step(10)
    last = dispatcher.on_step(13, final=True)
    assert last is not None
    assert (last.skipped, last.point.step, last.point.final) == (None, 13, True)
    assert len(trainer.staged) == 2


def test_a_last_step_that_was_skipped_before_it_was_known_to_be_the_last_is_measured_all_the_same(trainer: Trainer) -> None:
    dispatcher = trainer.start(max_in_flight=1, overflow_policy="skip")
    dispatcher.on_step(10)
    busy = dispatcher.on_step(20)
    last = dispatcher.on_step(20, final=True)
    assert busy is not None
    assert last is not None
    assert (busy.skipped, last.skipped) == ("busy", None)
    assert last.point.final
    assert last.point.key != busy.point.key


def test_the_final_point_after_a_skip_needs_no_store_to_get_an_attempt_of_its_own(
    trainer: Trainer, prefect: FakePrefect, tmp_path: Path
) -> None:
    dispatcher = trainer.start(max_in_flight=1, overflow_policy="skip")
    dispatcher.on_step(10)
    dispatcher.on_step(20)
    until(lambda: records.history(trainer.store, "run"))
    away = tmp_path / "home" / "away"
    (tmp_path / "home" / "store").rename(away)
    (tmp_path / "home" / "store").write_text("a file in the way")
    last = dispatcher.on_step(20, final=True)
    assert last is not None
    assert (last.skipped, last.point.final) == (None, True)
    assert last.point.attempt > 1_000_000
    until(lambda: len(prefect.runs) == 3)
    (tmp_path / "home" / "store").unlink()
    away.rename(tmp_path / "home" / "store")


def test_a_point_that_could_not_be_dispatched_is_recorded_as_what_it_was(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [OSError(28, "No space left on device")]

    def full_once(descriptor: int, data: memoryview) -> int:
        if faults and b'"skip":null' in bytes(data) and "/outbox/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise faults.pop()
        return write(descriptor, data)

    write = os.write
    monkeypatch.setattr(os, "write", full_once)
    crashed = trainer.start().on_step(35, final=True)
    assert crashed is not None
    assert crashed.skipped == "crashed"
    assert (crashed.point.final, crashed.point.missed) == (True, (10, 20, 30))
    assert trainer.staged == []


def test_backpressure_waits_for_the_oldest_and_then_goes_on(trainer: Trainer) -> None:
    dispatcher = trainer.start(max_in_flight=1, backpressure_timeout_s=20)
    dispatcher.on_step(10)
    records.commit(trainer.store, report_at(10))
    waited = dispatcher.on_step(20)
    assert waited is not None
    assert (waited.skipped, len(trainer.export.folders)) == (None, 2)
    assert waited.waited_seconds < 5


@pytest.mark.parametrize("ends", [True, False])
def test_a_wait_for_room_is_one_line_of_the_log_with_run_and_step(
    trainer: Trainer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    caplog.set_level(logging.INFO, logger="trainer_integration.desk")
    dispatcher = trainer.start(max_in_flight=1, backpressure_timeout_s=20 if ends else 0.2)
    assert dispatcher.on_step(10) is not None
    assert caplog.messages == []
    if ends:
        watch = dispatcher.desk.submitter.watch
        wait = watch.wait

        def ends_meanwhile(others: int, timeout_s: float) -> bool:
            if timeout_s > 0:
                records.commit(trainer.store, report_at(10))
            return wait(others, timeout_s)

        monkeypatch.setattr(watch, "wait", ends_meanwhile)
    waited = dispatcher.on_step(20)
    assert waited is not None
    outcome = "and got it" if ends else "in vain"
    assert caplog.messages == [f"pinpoint: step 20 of run waited {waited.waited_seconds:.1f} s for room {outcome}"]


def test_backpressure_is_bounded_and_then_records_busy(trainer: Trainer) -> None:
    dispatcher = trainer.start(max_in_flight=1, backpressure_timeout_s=0.2)
    dispatcher.on_step(10)
    waited = dispatcher.on_step(20)
    assert waited is not None
    assert waited.skipped == "busy"
    assert 0.2 <= waited.waited_seconds < 2
    assert len(trainer.export.folders) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("bug"), KeyError("x")])
def test_a_failing_exporter_becomes_export_failed_and_leaves_no_staged_folder(
    trainer: Trainer, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.export.fails = error
    dispatcher = trainer.start()
    failed = dispatcher.on_step(10)
    assert failed is not None
    assert failed.skipped == "export_failed"
    assert trainer.staged == []
    assert any(record.levelno == logging.ERROR and "step 000010" in record.message for record in caplog.records)
    until(lambda: records.find(trainer.store, EvalPoint(run="run", step=10), "suite"))
    trainer.export.fails = None
    after = dispatcher.on_step(20)
    assert after is not None
    assert after.skipped is None


def test_a_staging_area_that_cannot_be_written_is_export_failed(trainer: Trainer, tmp_path: Path) -> None:
    (tmp_path / "staging").write_text("a file in the way")
    failed = trainer.start().on_step(10)
    assert failed is not None
    assert failed.skipped == "export_failed"


def test_a_home_that_cannot_be_written_never_raises_and_its_point_is_skipped_all_the_same(
    trainer: Trainer, prefect: FakePrefect
) -> None:
    dispatcher = trainer.start(max_in_flight=1)
    folder = dispatcher.desk.submitter.outbox.folder
    shutil.rmtree(folder)
    folder.write_text("a file in the way")
    prefect.failing = 503
    done = dispatcher.on_step(10)
    assert done is not None
    assert done.skipped == "crashed"
    assert trainer.staged == []
    assert dispatcher.desk.submitter.watch.in_flight == 0
    until(lambda: records.find(trainer.store, EvalPoint(run="run", step=10), "suite"))
    assert not dispatcher.drain(0.1)
    prefect.failing = None
    assert dispatcher.drain(5)
    assert [(run.body["name"], run.state["name"]) for run in prefect.runs] == [("run · step 000010", "Skipped")]
    assert [metrics["eval/step"] for metrics in dispatcher.new_metrics()] == [10.0]
    folder.unlink()
    folder.mkdir()
    after = dispatcher.on_step(20)
    assert after is not None
    assert after.skipped is None


def test_a_delivery_that_fails_after_its_intent_was_written_leaves_one_record_and_no_intent(
    trainer: Trainer, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    dispatcher = trainer.start()
    monkeypatch.setattr(dispatcher.desk.submitter.outbox, "put", full)
    done = dispatcher.on_step(10)
    assert done is not None
    assert done.skipped == "crashed"
    until(lambda: prefect.runs and trainer.outbox == [])
    assert [record.message for record in dispatcher.records if isinstance(record, SkippedPoint)] == [
        "OSError: [Errno 28] No space left on device"
    ]


def test_a_bug_of_ours_at_the_desk_frees_what_was_staged_and_is_a_skipped_point(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = trainer.start()
    monkeypatch.setattr(dispatcher.desk, "_source", lambda *_: 1 / 0)
    done = dispatcher.on_step(10)
    assert done is not None
    assert done.skipped == "crashed"
    assert len(trainer.export.folders) == 1
    assert trainer.staged == []


def test_only_a_file_system_that_is_not_local_is_written_by_a_thread(trainer: Trainer) -> None:
    assert bounded.wait_s_for(Path("/proc/self")) == bounded.WAIT_S  # of no kind that is known to be local
    assert bounded.wait_s_for(Path("/dev/shm")) is None


class SlowHome:
    """The file system of `home`, which answers nothing until it is `free`, and then what it is to."""

    def __init__(self, dispatcher: EvalDispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
        outbox = dispatcher.desk.submitter.outbox
        outbox.wait_s = bounded.WAIT_S  # as on a network's
        self.free, self.fails, self._take = threading.Event(), 0, outbox.files.take
        monkeypatch.setattr(outbox.files, "take", self)

    def __call__(self, partial: Path) -> int:
        assert self.free.wait(20)
        if self.fails:
            self.fails -= 1
            raise OSError(5, "Input/output error")
        return self._take(partial)


def test_a_home_that_hangs_does_not_hold_up_training_and_its_point_is_evaluated_when_it_answers(
    trainer: Trainer, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = trainer.start()
    home, started = SlowHome(dispatcher, monkeypatch), time.monotonic()
    done = dispatcher.on_step(10)
    assert time.monotonic() - started < 2 * bounded.WAIT_S + PROMPT_S
    assert done is not None
    assert (done.skipped, prefect.runs, len(trainer.staged)) == (None, [], 1)
    assert not dispatcher.drain(0.05)
    home.free.set()
    until(lambda: prefect.runs and trainer.outbox == [])
    assert [run.state["name"] for run in prefect.runs] == ["Scheduled"]
    records.commit(trainer.store, report_at(10))
    assert dispatcher.drain(5)


def test_a_home_that_hangs_and_then_fails_ends_in_a_skipped_point(
    trainer: Trainer, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = trainer.start()
    home = SlowHome(dispatcher, monkeypatch)
    dispatcher.on_step(10)
    home.fails = 9
    home.free.set()
    until(lambda: prefect.runs)
    assert dispatcher.drain(5)
    assert [(run.body["name"], run.state["name"]) for run in prefect.runs] == [("run · step 000010", "Skipped")]
    (record,) = dispatcher.records
    assert isinstance(record, SkippedPoint)
    assert "Input/output error" in record.message
    assert (trainer.staged, trainer.outbox) == ([], [])


def test_an_interrupt_of_the_user_passes_through(trainer: Trainer) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    trainer.export = interrupted  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        trainer.start().on_step(10)


def test_a_resumed_run_has_a_new_attempt_and_another_run_its_own(trainer: Trainer, prefect: FakePrefect) -> None:
    for attempt in range(2):
        dispatcher = trainer.start()
        assert dispatcher.desk.attempt == attempt
        dispatcher.on_step(10)
        until(lambda: len(prefect.runs) == attempt + 1)  # noqa: B023
        dispatcher.close()
    assert trainer.start(run="other").desk.attempt == 0


def test_missed_steps_are_recorded_with_the_point_that_stands_for_them(trainer: Trainer, prefect: FakePrefect) -> None:
    jumped = trainer.start().on_step(35)
    assert jumped is not None
    assert jumped.point.missed == (10, 20, 30)
    until(lambda: prefect.runs)
    assert prefect.runs[0].body["parameters"]["request"]["point"]["missed"] == [10, 20, 30]


def test_the_baseline_is_at_the_step_before_training_and_once(trainer: Trainer, prefect: FakePrefect) -> None:
    dispatcher = trainer.start(start_step=20)
    baseline = dispatcher.baseline()
    assert baseline is not None
    assert (baseline.point.step, baseline.point.missed) == (20, ())
    assert dispatcher.on_step(20) is None
    assert dispatcher.on_step(30) is not None
    until(lambda: prefect.names == ["run · step 000020", "run · step 000030"])


def test_draining_says_whether_all_points_ended(trainer: Trainer) -> None:
    dispatcher = trainer.start()
    assert dispatcher.drain(1)
    dispatcher.on_step(10)
    assert not dispatcher.drain(0.2)
    records.commit(trainer.store, report_at(10))
    assert dispatcher.drain(5)


def test_settings_that_cannot_be_meant_are_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad = Settings(home=tmp_path, store_url=(tmp_path / "file" / "store").as_uri())
    with pytest.raises(StoreError):
        EvalDispatcher(DispatchSettings(run="run", suite=SUITE, every=1), bad, Exporter())
    with pytest.raises(ConfigError, match="run name"):
        EvalDispatcher(DispatchSettings(run="a/b", suite=SUITE, every=1), Settings(home=tmp_path), Exporter())


def test_whatever_number_a_step_is_given_as_training_goes_on(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = trainer.start()
    odd: list[Any] = [20.0, -1, "20", None]
    for step in odd:
        assert dispatcher.on_step(step) is dispatcher.evaluate(step) is None
        dispatcher.resume(step)
    assert sum("is no step of run" in message for message in caplog.messages) == 3 * len(odd)
    done = dispatcher.on_step(np.int64(20))  # type: ignore[arg-type]
    assert done is not None
    assert (done.point.step, type(done.point.step), done.skipped) == (20, int, None)

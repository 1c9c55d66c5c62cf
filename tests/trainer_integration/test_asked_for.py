"""A trainer may have its own schedule, learn late where it goes on, and have evaluations of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from infra import records
from infra.model import BlackBoxSpec, EvalRequest, FleetSpec
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import report_at
from tests.services.waiting import until
from tests.trainer_integration.conftest import Trainer
from trainer_integration import attempts
from trainer_integration.metrics import metrics_of


def test_a_trainer_with_a_schedule_of_its_own_gets_a_point_whenever_it_asks_for_one(
    trainer: Trainer, prefect: FakePrefect, tmp_path: Path
) -> None:
    dispatcher = trainer.start(every=1000)
    for checkpoint in (tmp_path / "base", None):
        dispatcher.evaluate(3, checkpoint)
    until(lambda: len(prefect.runs) == 2)
    asked = [run.body["parameters"]["request"] for run in prefect.runs]
    assert [each["source"]["staged"] for each in asked] == [False, True]
    assert [(each["point"]["step"], each["point"]["attempt"]) for each in asked] == [(3, 0), (3, 1)]


def test_a_trainer_that_learns_late_where_it_goes_on_counts_from_there(trainer: Trainer) -> None:
    dispatcher = trainer.start(baseline_checkpoint="/what/it/started/from")
    dispatcher.resume(25)
    baseline, later = dispatcher.baseline(), dispatcher.on_step(31)
    assert baseline is not None
    assert later is not None
    assert (baseline.point.step, later.point.missed) == (25, (30,))
    assert len(trainer.export.folders) == 2  # the baseline is not what it once started from


def test_a_second_training_in_the_same_process_has_points_of_its_own(trainer: Trainer) -> None:
    dispatcher = trainer.start(baseline_checkpoint="/what/it/started/from")
    points = []
    for _ in range(2):
        dispatcher.resume(0)
        points += [dispatcher.baseline(), *(dispatcher.on_step(step, final=step == 13) for step in (10, 13))]
    assert [(done.point.step, done.point.attempt) for done in points if done] == [(s, a) for a in (0, 1) for s in (0, 10, 13)]
    assert len(trainer.export.folders) == 5  # the second baseline is not what the first training started from


def test_a_step_that_is_trained_again_after_a_roll_back_is_another_attempt(trainer: Trainer) -> None:
    dispatcher = trainer.start()
    points = [dispatcher.on_step(step) for step in (10, 20, 15, 20)]
    assert [(done.point.step, done.point.attempt) for done in points if done] == [(10, 0), (20, 0), (20, 1)]


def test_a_store_that_is_slow_to_count_attempts_does_not_hold_up_training(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher, released = trainer.start(), threading.Event()
    monkeypatch.setattr(attempts, "next_attempt", lambda *_: released.wait(20))
    started = time.monotonic()
    points = [dispatcher.evaluate(3) for _ in range(3)]
    assert time.monotonic() - started < 3
    released.set()
    found = [done.point.attempt for done in points if done]
    assert found[0] == 0
    assert 1_000_000 < found[1] < found[2]
    until(lambda: records.next_attempt(trainer.store, "run") > found[2])  # a later start's points are newer


def test_a_black_box_is_asked_for_without_the_machines_fleet(trainer: Trainer, prefect: FakePrefect) -> None:
    trainer.settings = trainer.settings.model_copy(update={"fleet": FleetSpec(name="mine", num_engines=3)})
    trainer.start(black_box=BlackBoxSpec(function="my.Evaluation")).on_step(10)
    until(lambda: prefect.runs)
    request = EvalRequest.model_validate(prefect.runs[0].body["parameters"]["request"])
    assert request.black_box == BlackBoxSpec(function="my.Evaluation")


def test_the_metrics_of_a_black_box_are_among_those_of_its_point() -> None:
    found = metrics_of(replace(report_at(10), results=(), metrics={"pass_rate": 0.25}))
    assert (found["eval/step"], found["eval/pass_rate"]) == (10.0, 0.25)


def test_where_no_thread_can_be_started_an_attempt_is_taken_from_the_clock(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert attempts.another_attempt(trainer.store, "run", 3) > attempts.UNCOUNTED

"""A trainer may have its own schedule, learn late where it goes on, and have evaluations of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from infra.model import BlackBoxSpec, EvalRequest, FleetSpec
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import report_at
from tests.trainer_integration.conftest import Trainer, until
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


def test_a_black_box_is_asked_for_without_the_machines_fleet(trainer: Trainer, prefect: FakePrefect) -> None:
    trainer.settings = trainer.settings.model_copy(update={"fleet": FleetSpec(name="mine", num_engines=3)})
    trainer.start(black_box=BlackBoxSpec(function="my.Evaluation")).on_step(10)
    until(lambda: prefect.runs)
    request = EvalRequest.model_validate(prefect.runs[0].body["parameters"]["request"])
    assert request.black_box == BlackBoxSpec(function="my.Evaluation")


def test_the_metrics_of_a_black_box_are_among_those_of_its_point() -> None:
    found = metrics_of(replace(report_at(10), results=(), metrics={"pass_rate": 0.25}))
    assert (found["eval/step"], found["eval/pass_rate"]) == (10.0, 0.25)

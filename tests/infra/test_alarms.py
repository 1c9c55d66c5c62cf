"""What of a run is worth a notification is told by its records: a regression beyond chance, three skips in a row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.alarms import Alarm, alarm_of, tags_of
from infra.model import Comparison, EvalPoint, PairedDifference, SkippedPoint
from infra.records import commit
from infra.store import Store
from tests.infra.examples import report_at

LOWER = PairedDifference(mean=-0.2, stderr=0.05, n=50, gained=0, lost=10, low=-0.3, high=-0.1, p_value=0.01, method="tango")


def skip_at(step: int, suite: str = "suite", attempt: int = 0) -> SkippedPoint:
    point = EvalPoint(run="run", step=step, attempt=attempt)
    return SkippedPoint(point=point, suite=suite, reason="busy", message="", export_time_seconds=0, finished_at="")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path.as_uri())


def test_the_third_skip_in_a_row_is_an_alarm_and_so_is_each_one_after_it(store: Store) -> None:
    assert [alarm_of(store, commit(store, skip_at(step))) for step in (20, 40, 60, 80)] == [
        None,
        None,
        Alarm(tag="skips-in-a-row", message="skipped in a row: step 20 busy, step 40 busy, step 60 busy"),
        Alarm(tag="skips-in-a-row", message="skipped in a row: step 40 busy, step 60 busy, step 80 busy"),
    ]


def test_a_measured_point_between_skips_ends_the_row(store: Store) -> None:
    suite = report_at(40).suite
    for record in (skip_at(20, suite), report_at(40), skip_at(60, suite)):
        commit(store, record)
    assert alarm_of(store, commit(store, skip_at(80, suite))) is None
    assert alarm_of(store, commit(store, skip_at(100, suite))) is not None


def test_skips_of_another_suite_or_at_later_steps_do_not_count(store: Store) -> None:
    for record in (skip_at(20), skip_at(40, "other"), skip_at(80), skip_at(100)):
        commit(store, record)
    assert alarm_of(store, commit(store, skip_at(60))) is None


def test_a_step_that_is_tried_again_is_one_skip(store: Store) -> None:
    for attempt in range(12):
        assert alarm_of(store, commit(store, skip_at(20, attempt=attempt))) is None
    for attempt in (8, 9):
        commit(store, skip_at(40, attempt=attempt))
    commit(store, replace(report_at(40), point=EvalPoint(run="run", step=40, attempt=10), suite="suite"))
    assert alarm_of(store, commit(store, skip_at(60))) is None
    assert alarm_of(store, commit(store, skip_at(80))) is None


def test_points_before_that_can_not_be_read_give_no_alarm(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    for step in (20, 40):
        commit(store, skip_at(step))
    store.write("runs/run/points/step00000040-a0/suite/record.json", b"{")
    assert alarm_of(store, commit(store, skip_at(60))) is None
    assert "can't be read" in caplog.text


@pytest.mark.parametrize(
    ("difference", "against", "tag"),
    [
        (LOWER, "previous", "regression"),
        (LOWER, "baseline", None),
        (replace(LOWER, high=0.01), "previous", None),
        (replace(LOWER, mean=0.2, low=0.1, high=0.3), "previous", None),
        (None, "previous", None),
    ],
)
def test_a_regression_is_lower_than_the_point_before_beyond_chance(
    store: Store, difference: PairedDifference | None, against: str, tag: str | None
) -> None:
    made = Comparison(dataset="rows", against=against, other=EvalPoint(run="run", step=0), difference=difference)  # type: ignore[arg-type]
    alarm = alarm_of(store, replace(report_at(20), comparisons=(made,)))
    assert (alarm.tag if alarm else None) == tag
    assert alarm is None or "rows -0.200" in alarm.message


def test_only_the_last_point_of_a_run_is_tagged_as_final() -> None:
    assert tags_of(EvalPoint(run="run", step=20)) == ()
    assert tags_of(EvalPoint(run="run", step=20, final=True)) == ("final",)

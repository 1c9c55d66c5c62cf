"""Runs that were measured with one suite are compared without reading all that the store has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.comparison_index import MOST_BYTES, MOST_RUNS, enter, entered
from infra.model import EvalPoint, EvalReport, SkippedPoint
from infra.store import Store
from tests.infra.examples import REPORT, RESULT, SKIPPED, report_at


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path.as_uri())


def test_a_run_is_found_under_each_of_its_suites_with_the_points_of_that_suite(store: Store) -> None:
    records: list[EvalReport | SkippedPoint] = [
        report_at(0),
        replace(report_at(10), suite="other"),
        replace(SKIPPED, point=EvalPoint(run="run", step=20)),
    ]
    for suite in ("suite", "other"):
        enter(store, "run", suite, records)
    found, others = entered(store, "suite")
    assert [(type(record), record.point.step) for record in found["run"]] == [(type(records[0]), 0), (type(records[2]), 20)]
    assert others == 0
    assert [record.point.step for record in entered(store, "other")[0]["run"]] == [10]
    assert entered(store, "none") == ({}, 0)


def test_of_very_many_runs_only_the_last_are_read_and_the_others_are_counted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(190):
        store.write(f"comparisons/suite/old-{number}.json", b"would be said to be unreadable, if it was read")
    for number in range(MOST_RUNS):
        enter(store, f"run-{number}", "suite", [report_at(0, run=f"run-{number}")])
    found, others = entered(store, "suite")
    assert list(found) == [f"run-{number}" for number in reversed(range(MOST_RUNS))]
    assert others == 190
    assert caplog.messages == []


def test_what_is_written_of_a_long_run_is_bounded(store: Store) -> None:
    results = tuple(replace(RESULT, dataset=f"set{number}") for number in range(10))
    enter(
        store, "run", "suite", [replace(REPORT, point=EvalPoint(run="run", step=step), results=results) for step in range(2000)]
    )
    assert store.list("comparisons")["comparisons/suite/run.json"] < 100_000
    assert [record.point.step for record in entered(store, "suite")[0]["run"]][-1] == 1999


def test_of_a_black_box_with_very_many_metrics_as_many_are_kept_as_are_drawn(store: Store) -> None:
    measured = replace(REPORT, results=(), metrics={f"task{number}": 0.5 for number in range(500)})
    enter(store, "run", "suite", [replace(measured, point=EvalPoint(run="run", step=step)) for step in range(50)])
    kept = entered(store, "suite")[0]["run"]
    assert len(kept) == 5
    assert all(isinstance(record, EvalReport) and len(record.metrics) == 20 for record in kept)


@pytest.mark.parametrize("content", [b"[{", b"[]" + b" " * MOST_BYTES, b'[{"kind": "other"}]'], ids=["torn", "huge", "foreign"])
def test_a_run_that_can_not_be_read_is_left_out_and_no_other(store: Store, content: bytes) -> None:
    enter(store, "run", "suite", [report_at(0)])
    store.write("comparisons/suite/bad.json", content)
    assert list(entered(store, "suite")[0]) == ["run"]

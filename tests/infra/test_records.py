"""The record of a point is written once, in the store, and everything people see is made from it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from infra import records
from infra.model import EvalPoint
from infra.store import Store
from tests.infra.examples import POINT, REPORT, SKIPPED, report_at, sample


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path.as_uri())


def test_the_first_record_of_a_point_is_the_one_that_counts(store: Store) -> None:
    assert records.commit(store, SKIPPED) == SKIPPED
    assert records.commit(store, REPORT) == SKIPPED
    assert records.find(store, POINT, "suite") == SKIPPED


def test_of_many_commits_at_once_all_are_told_the_same_record(store: Store) -> None:
    many = [replace(SKIPPED, message=str(n)) for n in range(16)]
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda record: records.commit(store, record), many))
    assert len({str(record) for record in told}) == 1


def test_suites_attempts_and_steps_have_records_of_their_own(store: Store) -> None:
    others = [replace(REPORT, suite="other"), report_at(10, attempt=1), report_at(11), report_at(10, run="run2")]
    for record in (REPORT, *others):
        assert records.commit(store, record) == record
    assert records.runs(store) == ["run", "run2"]
    assert len(records.history(store, "run")) == 4


def test_a_history_is_by_step_attempt_and_suite(store: Store) -> None:
    ordered = [report_at(3), *(report_at(20, attempt=attempt) for attempt in (0, 1, 2, 10)), report_at(100)]
    other = replace(report_at(20, attempt=2), suite="another")
    ordered.insert(3, other)
    for record in reversed(ordered):
        records.commit(store, record)
    assert records.history(store, "run") == ordered


def test_a_point_without_a_record_has_none(store: Store) -> None:
    assert records.find(store, POINT, "suite") is None
    assert records.history(store, "run") == []
    assert records.runs(store) == []


def test_each_start_of_a_run_has_an_attempt_of_its_own(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        attempts = list(pool.map(lambda _: records.next_attempt(store, "run"), range(8)))
    assert sorted(attempts) == list(range(8))
    assert records.next_attempt(store, "other") == 0


def test_samples_are_one_line_each_and_their_text_is_exact(store: Store) -> None:
    hostile = sample(response='line\nbreak \ud800 \0 "quoted"')
    location = records.write_samples(store, POINT, "suite", "sums", [sample(), hostile])
    key = location.removeprefix(store.url + "/")
    lines = store.read(key).decode().splitlines()
    assert [json.loads(line)["response"] for line in lines] == ["2", hostile.response]
    assert key.startswith(records.point_prefix(POINT, "suite"))


def test_progress_is_the_last_step_that_this_start_of_the_run_said(store: Store) -> None:
    assert records.read_progress(store, "run", 0) is None
    records.write_progress(store, "run", 0, 7)
    records.write_progress(store, "run", 0, 9)
    assert records.read_progress(store, "run", 0) == 9
    assert records.read_progress(store, "run", 1) is None
    records.write_progress(store, "run", 1, 0)
    assert (records.read_progress(store, "run", 0), records.read_progress(store, "run", 1)) == (9, 0)


def test_samples_and_progress_are_not_records(store: Store) -> None:
    records.write_samples(store, EvalPoint(run="run", step=1), "suite", "sums", [sample()])
    records.write_progress(store, "run", 0, 1)
    assert records.runs(store) == []

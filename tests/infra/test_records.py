"""The record of a point is written once, in the store, and everything people see is made from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from infra import records
from infra.errors import ConfigError, PinpointError, RecordDamaged
from infra.model import EvalPoint, Sample
from infra.store import Store
from tests.infra.examples import POINT, REPORT, RESULT, SKIPPED, report_at, sample
from tests.services.s3 import S3Server


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


def test_samples_are_beside_the_record_and_their_text_is_exact(store: Store) -> None:
    hostile = sample(response='line\nbreak \ud800 \0 "quoted"')
    location = records.write_samples(store, POINT, "suite", "sums", iter([sample(), hostile]))
    assert list(records.samples_at(store, location)) == [sample(), hostile]
    assert list(records.read_samples(store, POINT, "suite", "sums")) == [sample(), hostile]
    assert store.key_of(location) in store.list(f"{records.point_prefix(POINT, 'suite')}/samples/sums")


def test_samples_of_one_dataset_are_not_those_of_another(store: Store) -> None:
    for name in ("sums", "sums2", "sum"):
        records.write_samples(store, POINT, "suite", name, [sample(name)])
    assert [one.problem_id for one in records.read_samples(store, POINT, "suite", "sums")] == ["sums"]
    with pytest.raises(FileNotFoundError):
        list(records.read_samples(store, POINT, "suite", "words"))


def reported(store: Store, location: str) -> None:
    records.commit(store, replace(REPORT, results=(replace(RESULT, samples_location=location),)))


def test_the_samples_of_a_point_are_those_that_its_report_was_made_from(store: Store) -> None:
    first = records.write_samples(store, POINT, "suite", "sums", [sample("first")])
    second = records.write_samples(store, POINT, "suite", "sums", [sample("second")])
    assert first != second
    assert [one.problem_id for one in records.read_samples(store, POINT, "suite", "sums")] == ["second"]
    reported(store, first)
    assert [one.problem_id for one in records.read_samples(store, POINT, "suite", "sums")] == ["first"]
    store.delete(first.removeprefix(f"{store.url}/"))
    with pytest.raises(FileNotFoundError):
        list(records.read_samples(store, POINT, "suite", "sums"))


def test_samples_are_found_in_a_store_that_was_moved(store: Store, tmp_path: Path) -> None:
    store = Store((tmp_path / "before").as_uri())
    reported(store, records.write_samples(store, POINT, "suite", "sums", [sample("moved")]))
    (tmp_path / "before").rename(tmp_path / "after")
    moved = Store((tmp_path / "after").as_uri())
    assert [one.problem_id for one in records.read_samples(moved, POINT, "suite", "sums")] == ["moved"]


def test_samples_that_fail_on_the_way_leave_nothing(store: Store) -> None:
    def failing() -> Iterator[Sample]:
        yield sample()
        raise ConnectionError("the engine is gone")

    with pytest.raises(ConnectionError):
        records.write_samples(store, POINT, "suite", "sums", failing())
    assert store.list("") == {}


@pytest.mark.slow
def test_samples_go_to_s3_and_come_back(s3: S3Server) -> None:
    store = Store(f"s3://{s3.bucket}/samples")
    location = records.write_samples(store, POINT, "suite", "sums", (sample(f"p{i}") for i in range(2000)))
    reported(store, location)
    assert [one.problem_id for one in records.read_samples(store, POINT, "suite", "sums")] == [f"p{i}" for i in range(2000)]


def test_samples_that_an_earlier_version_wrote_as_lines_are_read(store: Store) -> None:
    key = f"{records.point_prefix(POINT, 'suite')}/samples/sums.jsonl"
    store.write(key, "".join(json.dumps(asdict(one)) + "\n" for one in (sample(), sample("q", reward=None))).encode())
    reported(store, store.url_of(key))
    assert list(records.read_samples(store, POINT, "suite", "sums")) == [sample(), sample("q", reward=None)]


def test_a_record_says_of_which_format_it_is(store: Store) -> None:
    for record, suite in ((REPORT, "suite"), (replace(SKIPPED, suite="other"), "other")):
        records.commit(store, record)
        assert json.loads(store.read(records.record_key(POINT, suite)))["format"] == 1


def test_a_record_that_was_written_before_formats_were_noted_is_read(store: Store) -> None:
    """With fields that did not exist either."""
    records.commit(store, REPORT)
    key = records.record_key(POINT, "suite")
    written = json.loads(store.read(key))
    for name in ("format", "comparisons", "points_so_far", "metrics"):
        del written[name]
    for name in ("pass_at_k", "lengths", "samples_per_prompt", "no_score"):
        del written["results"][0][name]
    store.write(key, json.dumps(written).encode())
    assert records.find(store, POINT, "suite") == REPORT
    assert records.history(store, "run") == [REPORT]


def test_a_record_of_a_format_yet_to_come_is_refused_with_the_remedy(store: Store) -> None:
    store.write(records.record_key(POINT, "suite"), b'{"format": 2, "kind": "essay"}')
    for read in (lambda: records.find(store, POINT, "suite"), lambda: records.history(store, "run")):
        with pytest.raises(ConfigError, match=r"record.json has format 2; .* upgrade"):
            read()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"kind":"report", "po',
        b"\xff\xfe\x00{",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"format": "new"}',
        b'{"kind": "essay"}',
    ],
    ids=["empty", "torn", "no text", "null", "list", "deep", "format", "kind"],
)
def test_a_damaged_record_is_an_error_of_the_tree_that_names_it_and_the_remedy(store: Store, data: bytes) -> None:
    """It is a ValueError too, for who only wants to go on without."""
    key = records.record_key(POINT, "suite")
    store.write(key, data)
    later = EvalPoint(run="run", step=POINT.step + 1)
    reads = (
        lambda: records.find(store, POINT, "suite"),
        lambda: records.history(store, "run"),
        lambda: records.find_before(store, later, "suite", 1),
        lambda: records.commit(store, SKIPPED),
    )
    for read in reads:
        with pytest.raises(
            RecordDamaged, match=f"{re.escape(key)} can't be read .*: put it back from a copy, or delete it"
        ) as told:
            read()
        assert isinstance(told.value, ValueError)
        assert isinstance(told.value, PinpointError)
        assert len(str(told.value).splitlines()) == 1


def test_a_record_whose_point_can_not_be_is_damaged_and_says_where(store: Store) -> None:
    records.commit(store, REPORT)
    key = records.record_key(POINT, "suite")
    whole = json.loads(store.read(key))
    for changes, said in (({"point": {"run": "../x", "step": 10}}, "run name '../x'"), ({"results": 7}, "report.results: ")):
        store.write(key, json.dumps(whole | changes).encode())
        with pytest.raises(RecordDamaged, match=re.escape(said)):
            records.history(store, "run")


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

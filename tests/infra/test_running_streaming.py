"""A dataset streams: the longest are asked first, samples come back in order, and memory does not grow with responses."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra.model import Problem, SampleOutcome
from infra.running import load, stream_samples
from infra.running.order import Feed, known_lengths, longest_first, note_lengths
from infra.running.progress import Progress
from infra.running.spool import Spool, line_of, sample_in
from infra.store import Store
from tests.fakes.engine import FakeEngine
from tests.infra.examples import TOKEN, dataset, sample
from tests.infra.interrupted import pinned_to, problems


@pytest.fixture
def engines() -> Iterator[tuple[FakeEngine, ...]]:
    with ExitStack() as stack:
        made = tuple(stack.enter_context(FakeEngine()) for _ in range(2))
        for engine in made:
            engine.version = TOKEN
        yield made


async def test_the_longest_are_asked_first_where_lengths_are_known(
    engines: tuple[FakeEngine, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "REQUESTS_PER_ENGINE", 1)
    rows, known = problems(8), {"p1": 10.0, "p6": 500.0, "p3": 400.0, "p0": 5.0}
    with Spool(rows, 1) as spool:
        await stream_samples(pinned_to(engines[0].base_url), dataset(), rows, str, spool, lengths=known)
        assert [s.problem_id for s in spool] == [row.id for row in rows]
    asked = [body["text"] for _, path, body in engines[0].requests if path == "/generate"]
    assert [text.split("+")[0] for text in asked] == ["6", "3", "2", "4", "5", "7", "1", "0"]


def test_without_known_lengths_problems_are_asked_in_the_order_of_the_file() -> None:
    assert longest_first(problems(5), {}) == problems(5)


def test_lengths_are_those_of_the_runs_point_before(tmp_path: Path) -> None:
    store = Store(tmp_path.as_uri())
    assert known_lengths(store, "run", "suite", "sums") == {}
    lost = sample("q", 0, None, outcome=SampleOutcome.INFRA_ERROR, completion_tokens=0)
    samples = [sample("p", 0, completion_tokens=3), sample("p", 1, completion_tokens=4), lost]
    note_lengths(store, "run", "suite", "sums", samples)
    assert known_lengths(store, "run", "suite", "sums") == {"p": 3.5}
    assert known_lengths(store, "run", "other", "sums") == {}
    (next(tmp_path.rglob("sums.json"))).write_text("[]")
    assert known_lengths(store, "run", "suite", "sums") == {}


def test_a_lane_keeps_all_samples_of_a_problem_and_an_idle_one_takes_the_next_problem() -> None:
    feed = Feed(problems(3), 2, 2, lambda problem, index: (problem, index) == ("p1", 0))

    def taken(lane: int) -> tuple[str, int] | None:
        item = feed.next(lane)
        return (item[0].id, item[1]) if item else None

    assert [taken(0), taken(1), taken(0)] == [("p0", 0), ("p1", 1), ("p0", 1)]
    assert [taken(1), taken(1), taken(1), taken(0)] == [("p2", 0), ("p2", 1), None, None]


async def test_an_engine_that_is_slow_does_not_hold_back_what_another_could_do(
    engines: tuple[FakeEngine, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "REQUESTS_PER_ENGINE", 2)
    engines[0].latency_s = 0.5
    rows = problems(40)
    with Spool(rows, 1) as spool:
        await stream_samples(pinned_to(*(e.base_url for e in engines)), dataset(), rows, str, spool)
        by = [s.engine for s in spool]
    assert by.count("engine-0") < 10
    assert len(by) == 40


def test_a_spool_gives_samples_back_as_they_were_in_the_order_of_their_problems() -> None:
    rows = [Problem(id=id, prompt="", answer="", entry={}) for id in ("b", "a \udfff", "ü")]
    odd = sample("a \udfff", 1, None, outcome=SampleOutcome.GRADER_TIMEOUT, detail="\n", weight_versions=("x", "y"))
    added = [sample("ü", 0, 0.25, response="größer\u2028"), odd, sample("b", 1)]
    with Spool(rows, 2) as spool:
        for one in added:
            spool.add(one)
        assert list(spool) == [added[2], added[1], added[0]]
        assert (spool[0], spool[-1], len(spool)) == (added[2], added[0], 3)
        with pytest.raises(IndexError):
            spool[3]
        assert [spool.has("b", 0), spool.has("b", 1)] == [False, True]
        assert [spool.wants(sample("b", 0)), spool.wants(sample("b", 1)), spool.wants(sample("b", 2))] == [True, False, False]
        assert not spool.wants(sample("another"))
        assert spool.read(0, spool.file_bytes) == b"".join(map(line_of, added))
        assert sample_in(line_of(odd)) == odd


def test_memory_does_not_grow_with_responses() -> None:
    rows = problems(10_000)
    tracemalloc.start()
    try:
        with Spool(rows, 2) as spool:
            start, _ = tracemalloc.get_traced_memory()
            for row in rows:
                for index in range(2):
                    spool.add(sample(row.id, index, response="a long response " * 60))
            assert sum(s.reward or 0 for s in spool) == 20_000
            _, peak = tracemalloc.get_traced_memory()
            assert spool.file_bytes > 20_000_000
    finally:
        tracemalloc.stop()
    assert peak - start < 1_000_000


def test_progress_says_how_fast_it_goes_without_what_was_there_before() -> None:
    progress = Progress(total=100, done=60, resumed=50)
    progress.started -= 5
    assert progress.per_second == pytest.approx(2.0, rel=0.01)
    assert progress.eta_s == pytest.approx(20.0, rel=0.01)
    assert (str(progress), progress.share) == ("60 of 100 samples, 2 a second, 50 from before, 0:20 left", 0.6)
    assert Progress(total=10).eta_s is None
    assert "left" not in str(Progress(total=10, done=10))

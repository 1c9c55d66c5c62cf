"""No engine is asked more at once than it can take; how much that is, its own queue and its refusals say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from infra.concurrency import gather_all
from infra.engines.client import EngineClient
from infra.errors import EngineRefused, FleetUnhealthy
from infra.model import SampleOutcome
from infra.roster import Roster
from infra.running import asking, load, run_samples
from infra.running.load import LEAST_PER_ENGINE, MOST_PER_ENGINE, REQUESTS_PER_ENGINE, Gate, Gates
from tests.fakes.engine import FakeEngine
from tests.fakes.wire import Answer
from tests.infra.examples import TOKEN, dataset
from tests.infra.interrupted import pinned_to, problems


class LoadedEngine(FakeEngine):
    """Works on `room` requests at a time and says how many wait; `busy_with` or more get 503. `most` is what it was asked.

    An answer takes until its load was looked at `looks` times, however fast the machine is.
    """

    def __init__(self, room: int = 1000, busy_with: int = 1000) -> None:
        super().__init__()
        self.version, self.room, self.busy_with = TOKEN, room, busy_with
        self.now = self.most = self.looked = self.looks = 0
        self.was_looked_at = threading.Condition()
        self.seen: list[int] = []

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if path == "/v1/loads":
            ranks = [{"num_running_reqs": min(self.now, self.room), "num_waiting_reqs": max(0, self.now - self.room)}]
            with self.was_looked_at:
                self.looked += 1
                self.was_looked_at.notify_all()
            return Answer({"loads": ranks})
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.seen.append(self.now)
        try:
            if self.now > self.busy_with:
                return Answer({"error": "busy"}, 503)
            with self.was_looked_at:
                enough = self.looked + self.looks
                self.was_looked_at.wait_for(lambda: self.looked >= enough, timeout=60)
            return super().answer(method, path, body)
        finally:
            with self.lock:
                self.now -= 1


@pytest.fixture
def loaded() -> Iterator[LoadedEngine]:
    with LoadedEngine() as engine:
        yield engine


def test_an_engine_without_a_queue_is_asked_more_up_to_a_limit_but_only_if_more_was_wanted() -> None:
    gate = Gate()
    gate.learn(60, 0)
    assert gate.limit == REQUESTS_PER_ENGINE
    for _ in range(100):
        gate._was_full = True
        gate.learn(60, 0)
    assert gate.limit == MOST_PER_ENGINE


def test_a_queue_that_stays_makes_it_less_and_one_that_passes_does_not() -> None:
    gate = Gate()
    for running, waiting in ((4, 60), (60, 4), (4, 60), (60, 4)):
        gate.learn(running, waiting)
    assert gate.limit == REQUESTS_PER_ENGINE
    limits = []
    for _ in range(16):
        gate.learn(10, max(0, gate.limit - 10))
        limits.append(gate.limit)
    assert limits == sorted(limits, reverse=True)
    assert limits[3] == REQUESTS_PER_ENGINE  # it has just been seen to work on 60
    assert limits[-1] == 12  # what it works on, and a little to go on with


def test_what_fails_together_counts_once_and_an_engine_is_never_asked_nothing() -> None:
    gate = Gate()
    for _ in range(50):
        gate.ease()
    assert gate.limit == REQUESTS_PER_ENGINE // 2
    for _ in range(10):
        gate._eased -= 2 * load.LOOK_EVERY_S
        gate.ease()
    assert gate.limit == LEAST_PER_ENGINE


async def test_turns_come_in_order_and_one_that_is_given_up_is_the_next_ones() -> None:
    gate = Gate()
    gate.limit = 1
    came: list[int] = []

    async def ask(number: int) -> None:
        async with gate:
            came.append(number)
            await asyncio.sleep(0)

    async with gate:
        tasks = [asyncio.create_task(ask(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
    tasks[0].cancel()  # its turn has come, and it does not take it
    await asyncio.wait(tasks, timeout=5)
    assert (came, gate.asking) == ([2, 3], 0)


async def test_no_more_than_the_limit_are_asked_at_once(loaded: LoadedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "REQUESTS_PER_ENGINE", 5)
    loaded.latency_s = 0.02
    samples = await run_samples(pinned_to(loaded.base_url), dataset(), problems(60), str)
    assert len(samples) == 60
    assert loaded.most == 5


async def test_an_engine_that_queues_is_asked_less_while_the_dataset_runs(
    loaded: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "LOOK_EVERY_S", 0.02)
    loaded.looks, loaded.room = 5, 4
    await run_samples(pinned_to(loaded.base_url), dataset(), problems(200), str)
    assert loaded.most >= 40
    assert max(loaded.seen[-20:]) <= 25


async def test_an_engine_that_refuses_in_haste_is_asked_the_same_again_and_less_of_it(
    loaded: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "LOOK_EVERY_S", 0.05)
    loaded.looks, loaded.busy_with = 1, 40
    samples = await run_samples(pinned_to(loaded.base_url), dataset(), problems(300), str)
    assert {sample.outcome for sample in samples} == {SampleOutcome.OK}
    assert loaded.most > 40


@pytest.mark.parametrize("count", [1, 2])
async def test_an_engine_that_has_too_much_to_do_for_seconds_costs_no_sample(count: int) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(LoadedEngine()) for _ in range(count)]
        for engine in engines:
            engine.busy_with = 0

        def room() -> None:
            for engine in engines:
                engine.busy_with = 1000

        asyncio.get_running_loop().call_later(2.5, room)  # three tries, a pause after each, are over long before
        samples = await run_samples(pinned_to(*(engine.base_url for engine in engines)), dataset(), problems(20), str)
    assert {sample.outcome for sample in samples} == {SampleOutcome.OK}


async def test_an_engine_that_has_too_much_to_do_for_ever_is_given_up(
    loaded: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", 0.3)
    loaded.busy_with = 0
    with pytest.raises(FleetUnhealthy, match="no engine answered: engine .*: /generate answered 503: busy"):
        await run_samples(pinned_to(loaded.base_url), dataset(request_deadline_s=1.0), problems(8), str)


async def test_an_engine_that_works_on_one_long_answer_and_refuses_the_rest_has_not_failed(
    loaded: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", 0.1)
    monkeypatch.setattr(asking, "LONGEST_PAUSE_S", 0.3)
    loaded.busy_with, loaded.latency_s = 1, 1.0
    samples = await run_samples(pinned_to(loaded.base_url), dataset(request_deadline_s=10.0), problems(4), str)
    assert {sample.outcome for sample in samples} == {SampleOutcome.OK}


async def test_datasets_of_a_point_share_an_engines_room(loaded: LoadedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "REQUESTS_PER_ENGINE", 6)
    loaded.latency_s = 0.02
    pinned = pinned_to(loaded.base_url)
    roster = Roster(pinned)
    await gather_all(run_samples(pinned, dataset(name), problems(40), str, roster) for name in ("one", "two"))
    assert loaded.most == 6
    assert Gates.of(roster) is Gates.of(roster)
    assert Gates.of(roster) is not Gates.of(Roster(pinned))


async def test_load_is_read_over_all_ranks_and_what_is_no_load_is_refused(loaded: LoadedEngine) -> None:
    async with EngineClient(loaded.base_url) as client:
        assert await client.load(5) == (0, 0)
        loaded.now, loaded.room = 9, 5
        assert await client.load(5) == (5, 4)
    with FakeEngine() as silent:
        async with EngineClient(silent.base_url) as client:
            with pytest.raises(EngineRefused):
                await client.load(5)

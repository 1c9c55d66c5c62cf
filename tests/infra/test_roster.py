"""An engine that dies or hangs while datasets run is asked nothing more until another in its place is pinned again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.errors import FleetUnhealthy, PinViolation
from infra.model import EngineProof, EngineRef, PinnedFleet
from infra.pinning import pin, rejoin
from infra.roster import REVIVALS, EngineLost, Roster, attended
from tests.fakes.engine import FakeEngine
from tests.infra.pinned import KEY, Fleet, fleet

HANG_S = 0.4


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


@pytest.fixture
async def pinned(two: Fleet) -> PinnedFleet:
    return await pin(two.lease(two.new), two.new)


class Rejoining:
    """Gives the next of `spares`, or fails if there is none; `asked` is how often."""

    def __init__(self, pinned: PinnedFleet, *spares: EngineRef) -> None:
        self.pinned, self.spares, self.asked = pinned, list(spares), 0
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, engine: EngineRef) -> tuple[EngineRef, EngineProof]:
        self.asked += 1
        await self.open.wait()
        if not self.spares:
            raise FleetUnhealthy("no spare")
        return self.spares.pop(0), replace(self.pinned.proofs[0], engine=engine.name)


def spare(engine: EngineRef, number: int) -> EngineRef:
    return replace(engine, pid=number)


async def back(roster: Roster, number: int) -> EngineRef:
    for _ in range(200):
        found = await roster.engine(number)
        if isinstance(found, EngineRef) and found.name == roster.pinned.engines[number].name:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come back")


async def test_a_lost_engine_is_not_asked_and_the_one_in_its_place_is(pinned: PinnedFleet) -> None:
    first, second = pinned.engines
    again = Rejoining(pinned, spare(first, 7))
    again.open.clear()
    async with attended(pinned, again, 60) as roster:
        roster.lost(first, "gone")
        roster.lost(first, "gone")  # as every request that was under way says
        assert await roster.engine(0) == second
        with pytest.raises(EngineLost), roster.asking(first):
            raise AssertionError("it must not be asked")
        again.open.set()
        assert (await back(roster, 0)).pid == 7
    assert again.asked == 1
    assert [proof.engine for proof in roster.proofs] == [first.name]


async def test_requests_that_are_under_way_on_a_lost_engine_end_at_once(pinned: PinnedFleet) -> None:
    roster = Roster(pinned)

    async def ask() -> None:
        with roster.asking(pinned.engines[0]):
            await asyncio.sleep(60)

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.05)
    roster.lost(pinned.engines[0], "gone")
    with pytest.raises(EngineLost, match="lost while it was asked"):
        await asyncio.wait_for(asking, 1)


async def test_while_all_are_lost_whoever_asks_waits_until_one_is_back(pinned: PinnedFleet) -> None:
    again = Rejoining(pinned, *(spare(engine, 7) for engine in pinned.engines))
    again.open.clear()
    async with attended(pinned, again, 60) as roster:
        for engine in pinned.engines:
            roster.lost(engine, "gone")
        waiting = asyncio.create_task(roster.engine(1))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        again.open.set()
        found = await asyncio.wait_for(waiting, 5)
        assert isinstance(found, EngineRef)
        assert found.pid == 7


async def test_if_none_comes_back_there_is_none_to_ask(pinned: PinnedFleet) -> None:
    async with attended(pinned, Rejoining(pinned), 60) as roster:
        for engine in pinned.engines:
            roster.lost(engine, "gone")
        assert await asyncio.wait_for(roster.engine(0), 5) is None
    alone = Roster(pinned)
    for engine in pinned.engines:
        alone.lost(engine, "gone")
    assert await alone.engine(0) is None


async def test_what_kills_an_engine_again_and_again_is_let_go(pinned: PinnedFleet) -> None:
    again = Rejoining(pinned, *(spare(pinned.engines[0], n) for n in range(10, 20)))
    async with attended(pinned, again, 60) as roster:
        for _ in range(REVIVALS):
            roster.lost(await back(roster, 0), "gone")
            await back(roster, 0)
        roster.lost(await back(roster, 0), "gone")
        await asyncio.sleep(0.1)
        assert await roster.engine(0) == pinned.engines[1]
    assert again.asked == REVIVALS


async def test_an_engine_that_drops_a_request_and_still_answers_is_not_lost(two: Fleet, pinned: PinnedFleet) -> None:
    roster = Roster(pinned)
    await roster.suspect(pinned.engines[0], "a dropped connection")
    assert await roster.engine(0) == pinned.engines[0]
    two.engines[0].drops.add("/server_info")
    await asyncio.gather(*(roster.suspect(pinned.engines[0], "a dropped connection") for _ in range(20)))
    assert await roster.engine(0) == pinned.engines[1]
    probes = [path for _, path, _ in two.engines[0].requests if path == "/server_info"]
    assert len(probes) == 1 + 2  # aiohttp asks a second time by itself, and twenty who suspect look once


async def test_an_engine_that_accepts_and_answers_nothing_is_found_and_replaced(two: Fleet, pinned: PinnedFleet) -> None:
    again = Rejoining(pinned, spare(pinned.engines[1], 9))
    async with attended(pinned, again, HANG_S) as roster:
        await asyncio.sleep(2 * HANG_S)
        assert again.asked == 0
        two.engines[1].hangs.add("/server_info")
        started = time.monotonic()
        while not again.asked:
            await asyncio.sleep(0.02)
            assert time.monotonic() - started < 10 * HANG_S
        two.engines[1].hangs.clear()
        assert (await back(roster, 1)).pid == 9


async def test_one_that_answers_nothing_and_has_no_way_back_is_lost(two: Fleet, pinned: PinnedFleet) -> None:
    async with attended(pinned, None, 4 * HANG_S) as roster:
        two.engines[1].hangs.add("/server_info")
        async with asyncio.timeout(30):
            while roster.may_ask(pinned.engines[1]):  # noqa: ASYNC110 - it is a look, not an event
                await asyncio.sleep(0.02)
        assert await roster.engine(1) == pinned.engines[0]


async def test_whatever_keeps_an_engine_from_coming_back_the_others_go_on(pinned: PinnedFleet) -> None:
    async def rejoin(engine: EngineRef) -> tuple[EngineRef, EngineProof]:
        raise OSError("no space left on device")

    async with attended(pinned, rejoin, 60) as roster:
        roster.lost(pinned.engines[0], "gone")
        await asyncio.sleep(0.1)
        assert await roster.engine(0) == pinned.engines[1]


async def test_the_one_in_its_place_must_hold_the_same_weights(two: Fleet, pinned: PinnedFleet) -> None:
    with FakeEngine(KEY) as fresh:
        ref = replace(pinned.engines[0], base_url=fresh.base_url)

        async def revive(engine: EngineRef) -> EngineRef:
            return ref

        _, proof = await rejoin(pinned, pinned.engines[0], revive)
        assert (proof.checksum, proof.canary) == (pinned.proofs[0].checksum, pinned.proofs[0].canary)
        fresh.logprob = lambda token: -1.0
        with pytest.raises(PinViolation, match="differently likely"):
            await rejoin(pinned, pinned.engines[0], revive)
        fresh.logprob = fresh._likely
        fresh.extra_tensor, fresh.tensors, fresh.says_algorithm = True, {**fresh.tensors, "more": "f" * 32}, False
        with pytest.raises(PinViolation, match="came back with other weights|holds other weights"):
            await rejoin(pinned, pinned.engines[0], revive)
        fresh.no_op_reload, fresh.version = True, "other"
        with pytest.raises(PinViolation, match="reports version 'other'"):
            await rejoin(pinned, pinned.engines[0], revive)


async def test_the_bodys_own_error_is_raised_as_it_is_and_nobody_comes_back_afterwards(pinned: PinnedFleet) -> None:
    again = Rejoining(pinned)
    again.open.clear()

    async def body() -> None:
        async with attended(pinned, again, 60) as roster:
            roster.lost(pinned.engines[0], "gone")
            raise PinViolation("foreign", expected="", reported={})

    with pytest.raises(PinViolation, match="foreign"):
        await body()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

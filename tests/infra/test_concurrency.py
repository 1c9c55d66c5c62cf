"""Several coroutines run together under one owner; the first failure ends the others and is what the caller sees."""

from __future__ import annotations

import asyncio

import pytest

from infra.concurrency import gather_all, settle_all
from infra.errors import PinViolation


async def later(value: int, delay_s: float = 0.0) -> int:
    await asyncio.sleep(delay_s)
    return value


async def test_results_are_in_order() -> None:
    assert await gather_all(later(n, 0.02 - n / 100) for n in range(3)) == [0, 1, 2]
    assert await gather_all([]) == []


async def test_the_first_failure_is_raised_as_it_is_and_the_others_are_cancelled_and_awaited() -> None:
    cleaned: list[bool] = []

    async def patient() -> int:
        try:
            return await later(1, 60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def failing() -> int:
        await asyncio.sleep(0.01)
        raise PinViolation("engine a", expected="x", reported={})

    with pytest.raises(PinViolation, match="engine a"):
        await gather_all([patient(), failing(), patient()])
    assert cleaned == [True, True]


async def test_a_failure_within_a_nested_group_is_raised_by_itself() -> None:
    async def failing() -> int:
        raise ValueError("inner")

    with pytest.raises(ValueError, match="inner"):
        await gather_all([gather_all([failing()]), gather_all([later(1)])])


async def test_the_first_failure_is_raised_when_the_others_have_run_to_their_end() -> None:
    ended = []

    async def fail() -> None:
        raise ValueError("first")

    async def go_on() -> None:
        await asyncio.sleep(0.1)
        ended.append(True)

    with pytest.raises(ValueError, match="first"):
        await settle_all([go_on(), fail(), go_on()])
    assert ended == [True, True]


async def test_cancelled_while_it_settles_it_leaves_nothing_running() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    settling = asyncio.create_task(settle_all([wait(), wait()]))
    await asyncio.sleep(0.05)
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert ended == [True, True]

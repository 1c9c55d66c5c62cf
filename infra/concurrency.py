"""Several coroutines run together under one owner; the first failure ends the others and is what the caller sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. When one raises, the others are cancelled and awaited, then its exception is raised as it is."""
    with first_failure():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    return [task.result() for task in tasks]


async def settle_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order, as of `gather_all`; but when one raises, the others run to their end before its exception is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def in_thread(call: Callable[[], T], stopping: threading.Event) -> T:
    """`call` in a thread. If cancelled, sets `stopping` and returns only when the thread has ended: nothing goes on behind."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stopping.set()
        with anyio.CancelScope(shield=True):
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # how it ended is of no interest any more, and asyncio need not complain that nobody looked
        raise


@contextmanager
def first_failure() -> Iterator[None]:
    """Raises the first exception of a task group by itself, so that callers can catch it by its class."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None

"""Many requests are asked of pinned engines, and either all are answered by the pinned version alone or there is no number.

For evaluations that have no place for a sample that nobody answered: a request is tried once more, on the next engine, then its
failure is everybody's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from infra.concurrency import gather_all
from infra.engines.client import EngineClient
from infra.errors import EngineError, EngineRefused, PinViolation
from infra.model import PinnedFleet
from infra.running import REQUEST_AT_FAULT, REQUESTS_PER_ENGINE

logger = logging.getLogger(__name__)


class Answer(Protocol):
    @property
    def weight_versions(self) -> tuple[str, ...]: ...


A = TypeVar("A", bound=Answer)
Ask = Callable[[EngineClient, str], Awaitable[A]]


class PinnedAsker:
    """`clients` are those of the pinned engines, in their order, and stay open while it is used."""

    def __init__(self, pinned: PinnedFleet, clients: Sequence[EngineClient]) -> None:
        self.pinned, self.clients = pinned, clients
        self._number = itertools.count()

    async def answers(self, requests: Sequence[Ask[A]], at_once: int = REQUESTS_PER_ENGINE) -> list[A]:
        """What each request, which is given a client and a request id, gets from an engine; in order.

        An engine has `at_once` of them at a time. Neighbours share an engine, since they often begin alike.
        Raises PinViolation, EngineRefused for a request that is itself at fault, EngineError.
        """
        rooms = [asyncio.Semaphore(at_once) for _ in self.clients]
        places = [n * len(rooms) // len(requests) for n in range(len(requests))]
        return await gather_all(self._answer(ask, place, rooms) for ask, place in zip(requests, places, strict=True))

    async def _answer(self, ask: Ask[A], engine: int, rooms: Sequence[asyncio.Semaphore]) -> A:
        rid = f"{self.pinned.token}/{next(self._number)}"
        try:
            return await self._attempt(ask, engine, rooms[engine], f"{rid}/0")
        except EngineError as error:
            if isinstance(error, EngineRefused) and error.status in REQUEST_AT_FAULT:
                raise
            logger.warning("%s: %s", rid, error)
        another = (engine + 1) % len(rooms)
        return await self._attempt(ask, another, rooms[another], f"{rid}/1")

    async def _attempt(self, ask: Ask[A], engine: int, room: asyncio.Semaphore, rid: str) -> A:
        async with room:
            answer = await ask(self.clients[engine], rid)
        self._check(answer.weight_versions, self.pinned.engines[engine].name, rid)
        return answer

    def _check(self, versions: tuple[str, ...], engine: str, rid: str) -> None:
        expected = self.pinned.token
        if set(versions) != {expected}:
            got = " then ".join(versions) or "none"
            message = f"engine {engine} answered {rid} with version {got}, pinned is {expected}"
            raise PinViolation(message, expected=expected, reported={engine: got})

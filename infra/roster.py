"""An engine that dies or hangs while datasets run is asked nothing more until another in its place is pinned again.

All datasets of a point share one roster, so an engine is lost once for all of them. Its requests go to the others meanwhile;
if there is no other, they wait for it to come back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio

from infra.concurrency import first_failure
from infra.engines.client import EngineClient
from infra.errors import EngineError, PinpointError
from infra.model import EngineProof, EngineRef, LiveEngine, Pinned

logger = logging.getLogger(__name__)
PROBE_EVERY_S = 5.0
PROBE_TIMEOUT_S = 10.0
REVIVALS = 2  # of one engine during one point; what kills it more often is not chance
Engine = EngineRef | LiveEngine
# Gives another engine in the place of a lost one, pinned and proved.
Rejoin = Callable[[EngineRef], Awaitable[tuple[EngineRef, EngineProof]]]


class EngineLost(Exception):
    """A request was given up because its engine counts as dead; it can be asked of another."""


@dataclass(slots=True)
class _Seat:
    """One engine of the fleet: `ref` is None while it is lost, `asking` are the requests that are under way on it."""

    ref: Engine | None
    checking: asyncio.Task[None] | None = None
    revivals: int = 0
    coming_back: bool = False
    asking: set[anyio.CancelScope] = field(default_factory=set)


class Roster:
    """Which engines may be asked; use `attended` to have lost ones come back."""

    def __init__(self, pinned: Pinned, rejoin: Rejoin | None = None, group: asyncio.TaskGroup | None = None) -> None:
        self.pinned = pinned
        self.proofs: list[EngineProof] = []  # of engines that came back
        self._rejoin, self._group = rejoin, group
        self._seats = [_Seat(ref) for ref in pinned.engines]
        self._moved = asyncio.Event()
        self._returning: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._seats)

    async def engine(self, preferred: int) -> Engine | None:
        """The engine with this number if it may be asked, else the next; waits while all are lost; None if none comes back."""
        while True:
            for offset in range(len(self._seats)):
                ref = self._seats[(preferred + offset) % len(self._seats)].ref
                if ref is not None:
                    return ref
            if not any(seat.coming_back for seat in self._seats):
                return None
            await self._moved.wait()

    def may_ask(self, engine: Engine) -> bool:
        return self._seat_of(engine) is not None

    @contextmanager
    def asking(self, engine: Engine) -> Iterator[None]:
        """The body is a request to the engine; it is cancelled, and EngineLost raised, if the engine is lost meanwhile."""
        seat = self._seat_of(engine)
        if seat is None:
            raise EngineLost(f"engine {engine.name} was lost")
        scope = anyio.CancelScope()
        seat.asking.add(scope)
        try:
            with scope:
                yield
        finally:
            seat.asking.discard(scope)
        if scope.cancelled_caught:
            raise EngineLost(f"engine {engine.name} was lost while it was asked")

    async def suspect(self, engine: Engine, why: str) -> None:
        """Looks whether an engine that dropped a request is still there; if it is not, it is lost."""
        seat = self._seat_of(engine)
        if seat is None:
            return
        if seat.checking is None or seat.checking.done():
            seat.checking = asyncio.create_task(self._check(engine, why))
        await asyncio.shield(seat.checking)

    async def _check(self, engine: Engine, why: str) -> None:
        if not await _alive(engine, self.pinned.api_key, PROBE_TIMEOUT_S):
            self.lost(engine, why)

    def lost(self, engine: Engine, why: str) -> None:
        """From now on the engine is not asked; one that is out already, or back in another process, is left alone."""
        seat = self._seat_of(engine)
        if seat is None:
            return
        seat.ref = None
        for scope in tuple(seat.asking):
            scope.cancel()
        lasting = self._closed or not self._rejoin or not self._group or seat.revivals >= REVIVALS
        if lasting or not isinstance(engine, EngineRef) or not self._rejoin or not self._group:
            logger.warning("engine %s is lost for the rest of %s: %s", engine.name, self.pinned.token, why)
        else:
            logger.warning("engine %s is lost, another takes its place: %s", engine.name, why)
            seat.coming_back, seat.revivals = True, seat.revivals + 1
            self._returning.add(self._group.create_task(self._come_back(seat, engine, self._rejoin)))
        self._tell()

    def close(self) -> None:
        """Nobody comes back any more."""
        self._closed = True
        for task in self._returning:
            task.cancel()

    async def watch(self, hang_timeout_s: float) -> None:
        """Finds engines that accept requests and answer nothing, until it is cancelled. A paused one answers."""
        async with asyncio.TaskGroup() as group:
            for number in range(len(self._seats)):
                group.create_task(self._watch(number, hang_timeout_s))

    async def _watch(self, number: int, hang_timeout_s: float) -> None:
        answered, known, unanswered = time.monotonic(), "", 0
        while True:
            await asyncio.sleep(min(PROBE_EVERY_S, hang_timeout_s / 4))
            ref = self._seats[number].ref
            if ref is None or ref.base_url != known or await _alive(ref, self.pinned.api_key, hang_timeout_s / 4):
                answered, known, unanswered = time.monotonic(), ref.base_url if ref else "", 0
                continue
            unanswered += 1  # one alone may be this process's own fault, if it was held up
            if unanswered > 1 and time.monotonic() - answered > hang_timeout_s:
                self.lost(ref, f"it has answered nothing for {hang_timeout_s:g} s")

    async def _come_back(self, seat: _Seat, engine: EngineRef, rejoin: Rejoin) -> None:
        try:
            ref, proof = await rejoin(engine)
        except (PinpointError, TimeoutError) as error:
            logger.warning("engine %s does not come back: %s", engine.name, error)
        except Exception:  # the others go on, whatever it is
            logger.exception("engine %s does not come back", engine.name)
        else:
            logger.info("engine %s is back at %s with %s", ref.name, ref.base_url, proof.reported_version)
            seat.ref = ref
            self.proofs.append(proof)
        finally:
            seat.coming_back = False
            self._tell()

    def _seat_of(self, engine: Engine) -> _Seat | None:
        return next((seat for seat in self._seats if seat.ref == engine), None)

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


@asynccontextmanager
async def attended(pinned: Pinned, rejoin: Rejoin | None, hang_timeout_s: float) -> AsyncIterator[Roster]:
    """A roster whose engines are watched, and come back if there is a way, while the body runs."""
    with first_failure():
        async with asyncio.TaskGroup() as group:
            roster = Roster(pinned, rejoin, group)
            watching = group.create_task(roster.watch(hang_timeout_s))
            try:
                yield roster
            finally:
                watching.cancel()
                roster.close()


async def _alive(engine: Engine, api_key: str, timeout_s: float) -> bool:
    try:
        async with EngineClient(engine.base_url, api_key) as client:
            await client.probe(timeout_s)
    except EngineError:
        return False
    return True

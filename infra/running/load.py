"""No engine is asked more at once than it can take; how much that is, its own queue and its refusals say.

Additive increase, multiplicative decrease: more while it has no queue and all that it may be asked is asked, less when it has
had a queue twice in a row, half when it refuses or does not answer in time. All datasets of a point share what they learn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import ClassVar
from weakref import WeakKeyDictionary

from infra.concurrency import gather_all
from infra.engines.client import EngineClient
from infra.errors import EngineError
from infra.roster import Roster
from infra.running.clients import Clients

REQUESTS_PER_ENGINE = 64  # at first
MOST_PER_ENGINE = 256
LEAST_PER_ENGINE = 4
MORE = 8
LESS = 0.7
QUEUED = 8  # one request in so many may wait in the engine, so that it is never idle
LOOK_EVERY_S = 1.0
LOOK_TIMEOUT_S = 2.0
LOOKS = 5  # that count as of late
HASTE = frozenset({429, 503})  # answers of an engine that is asked too much


class Gate:
    """Lets at most `limit` requests through to one engine process at a time."""

    def __init__(self) -> None:
        self.limit, self.asking = REQUESTS_PER_ENGINE, 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._was_full = self._was_queued = False
        self._worked_on: deque[int] = deque(maxlen=LOOKS)
        self._looked = self._eased = time.monotonic()

    async def __aenter__(self) -> None:
        """The body is a request. In order of arrival; a turn that comes is a place that is taken already."""
        if self.asking < self.limit and not self._waiting:
            self.asking += 1
            return
        self._was_full = True
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self.leave()

    def leave(self) -> None:
        self.asking -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.asking < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.asking += 1
                turn.set_result(None)

    def ease(self) -> None:
        """It refused, or did not answer in time. What fails together counts once."""
        if time.monotonic() - self._eased > LOOK_EVERY_S or self.limit >= REQUESTS_PER_ENGINE:
            self._eased = time.monotonic()
            self.limit = max(LEAST_PER_ENGINE, self.limit // 2)

    async def look(self, client: EngineClient) -> None:
        """Asks the engine for its load; one that does not say is asked as much as before."""
        if time.monotonic() - self._looked < LOOK_EVERY_S / 2:  # for another dataset
            return
        self._looked = time.monotonic()
        try:
            running, waiting = await client.load(LOOK_TIMEOUT_S)
        except EngineError:
            return
        self.learn(running, waiting)

    def learn(self, running: int, waiting: int) -> None:
        """It is not asked less than it has worked on of late: between two batches an engine looks as if it did nothing."""
        self._worked_on.append(running)
        enough = max(self._worked_on) + max(self._worked_on) // QUEUED + 1
        queued = waiting > running // QUEUED + 1
        if queued and self._was_queued:
            self.limit = max(LEAST_PER_ENGINE, min(self.limit, max(int(self.limit * LESS), enough)))
        elif not waiting and self._was_full:
            self.limit = min(MOST_PER_ENGINE, self.limit + MORE)
        self._was_queued, self._was_full = queued, False
        self._wake()


class Gates:
    """The gate of each engine process: one that took another's place starts anew."""

    _of: ClassVar[WeakKeyDictionary[Roster, Gates]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}
        self.answered_at = time.monotonic()  # the last time that any engine answered a request

    @classmethod
    def of(cls, roster: Roster) -> Gates:
        """Those of a point, which its datasets share as they share the roster."""
        return cls._of.setdefault(roster, cls())

    def __getitem__(self, base_url: str) -> Gate:
        return self._gates.setdefault(base_url, Gate())

    async def watch(self, clients: Clients) -> None:
        """Looks at the engines that one dataset asks, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await gather_all(self[client.base_url].look(client) for client in clients.opened)

"""While an evaluation runs, new rollout submissions wait at a gate; those under way finish, and nothing is aborted.

The gate pauses no engine, retracts no request and moves no weights: it is a door in front of `submit`. It always reopens: when
whoever closed it says so, and by itself when it has been closed for `max_closed_s`, whatever became of them. Each closing
has a name of its own, so that a late reopening of one that has ended opens nobody else's.

One object for threads and for any number of event loops, of one process. For a producer in another process, see
`gate_server.py` and `remote_gate.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from infra.errors import ConfigError

logger = logging.getLogger(__name__)
REMEMBERED_CLOSERS = 1024


@dataclass(slots=True)
class Pause:
    """A closing of a gate. `unfinished` submissions had not ended when it was done waiting for them.

    `lapsed`, known at its end, says that the gate had reopened by itself before.
    """

    unfinished: int = 0
    lapsed: bool = False


class Gate(Protocol):
    """What a driver needs of a gate, wherever the producer is. `producer` names the rollout function behind it, if known."""

    @property
    def producer(self) -> str: ...

    def closed(self, max_closed_s: float, settle_s: float = 0.0) -> AbstractContextManager[Pause]:
        """Closes the gate for the body, and waits up to `settle_s` for what is under way. Raises ServiceUnreachable."""
        ...

    def unfinished(self, wait_s: float = 0.0) -> int:
        """Submissions that are under way, after up to `wait_s` of waiting for there to be none."""
        ...


def refuse_early(gate: Gate, longest_s: float, otherwise: str = "") -> None:
    """Raises ConfigError for a gate that would open by itself within an evaluation that may take `longest_s`.

    `otherwise` is what else could be done. Raises ServiceUnreachable if it can't be asked.
    """
    most_s = getattr(gate, "max_closed_s", None)  # None of one that does not say
    if most_s is not None and most_s < longest_s:
        raise ConfigError(
            f"the gate opens by itself after {most_s:g} s, and an evaluation may take {longest_s:g} s: make it "
            f"PauseGate(max_closed_s={longest_s:g}){otherwise}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateStatus:
    """`passed` counts the submissions that were ever let through."""

    open: bool
    closers: int
    in_flight: int
    waiting: int
    passed: int


class PauseGate:
    """`max_closed_s` bounds any one stretch for which the gate is closed, however many close it meanwhile."""

    def __init__(
        self, *, producer: str = "", max_closed_s: float = 3600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.producer, self.max_closed_s = producer, max_closed_s
        self._clock, self._pid = clock, os.getpid()
        self._changed = threading.Condition()
        self._closers: dict[str, float] = {}  # when each has had its time
        self._ended: deque[str] = deque(maxlen=REMEMBERED_CLOSERS)
        self._closed_since = 0.0
        self._in_flight = self._waiting = self._passed = 0
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._submission = _Submission(self)

    # The producer's side

    def submission(self) -> _Submission:
        """`with` or `async with` it around each submission: waits at the closed gate, and is under way until its end."""
        return self._submission

    def enter(self, timeout_s: float | None = None) -> bool:
        """Waits for the gate to be open; true if a submission is under way now, to be ended by `leave`."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._admitted():
                left = self._next_expiry()
                if ends is not None:
                    left = min(left, ends - time.monotonic())
                    if ends <= time.monotonic():
                        return False
                self._waiting += 1
                try:
                    self._changed.wait(max(0.0, left))
                finally:
                    self._waiting -= 1
            return True

    async def enter_async(self) -> None:
        """The same, for as long as it takes, while the event loop goes on."""
        while True:
            with self._changed:
                if self._admitted():
                    return
                sleeper = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
                self._sleepers.append(sleeper)
                left = self._next_expiry()
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(sleeper[1], max(0.0, left))
            finally:
                with self._changed, suppress(ValueError):
                    self._sleepers.remove(sleeper)

    def leave(self) -> None:
        with self._changed:
            self._in_flight -= 1
            if not self._in_flight:
                self._changed.notify_all()

    # The driver's side

    @contextmanager
    def closed(self, max_closed_s: float, settle_s: float = 0.0) -> Iterator[Pause]:
        closer, pause = uuid.uuid4().hex, Pause()
        self.close(closer, max_closed_s)
        try:
            pause.unfinished = self.unfinished(settle_s)
            yield pause
        finally:
            pause.lapsed = not self.reopen(closer)

    def close(self, closer: str, for_s: float) -> bool:
        """Closes it, or keeps it closed, for `for_s` more; false for a `closer` whose closing has ended."""
        self._check_process()
        with self._changed:
            self._expire()
            if closer in self._ended:
                return False
            now = self._clock()
            if not self._closers:
                self._closed_since = now
            self._closers[closer] = min(now + for_s, self._closed_since + self.max_closed_s)
            self._changed.notify_all()  # whoever waits learns of the new time
            return True

    def reopen(self, closer: str) -> bool:
        """Ends one closing, and no other; false if it had ended before."""
        with self._changed:
            self._expire()
            held = self._closers.pop(closer, None) is not None
            self._ended.append(closer)  # also of one that is not known yet: its closing may arrive later than its end
            self._wake_if_open()
            return held

    def unfinished(self, wait_s: float = 0.0) -> int:
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight, wait_s)
            return self._in_flight

    @property
    def status(self) -> GateStatus:
        with self._changed:
            self._expire()
            return GateStatus(
                open=not self._closers,
                closers=len(self._closers),
                in_flight=self._in_flight,
                waiting=self._waiting + len(self._sleepers),
                passed=self._passed,
            )

    # With the lock held

    def _admitted(self) -> bool:
        self._check_process()
        if self._closers:
            self._expire()
            if self._closers:
                return False
        self._in_flight += 1
        self._passed += 1
        return True

    def _next_expiry(self) -> float:
        return max(self._closers.values()) - self._clock() if self._closers else 0.0

    def _expire(self) -> None:
        """A closing ends at its time though nobody ends it."""
        now = self._clock()
        for closer in [closer for closer, until in self._closers.items() if until <= now]:
            logger.warning("pinpoint: the gate reopened by itself: whoever closed it did not reopen it in time")
            del self._closers[closer]
            self._ended.append(closer)
        self._wake_if_open()

    def _wake_if_open(self) -> None:
        if self._closers:
            return
        self._changed.notify_all()
        sleepers, self._sleepers = self._sleepers, []
        for loop, sleeper in sleepers:
            with suppress(RuntimeError):  # a loop that was closed has nobody left to wake
                loop.call_soon_threadsafe(_wake, sleeper)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                "a PauseGate is of the process that made it, and this is a fork with a copy that pauses nothing: make the "
                "gate in the producer's process, serve it with `serve_gate`, and close it with a RemoteGate"
            )


class _Submission:
    """Stateless, so that all share one."""

    __slots__ = ("_gate",)

    def __init__(self, gate: PauseGate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.enter()

    def __exit__(self, *exit: object) -> None:
        self._gate.leave()

    async def __aenter__(self) -> None:
        await self._gate.enter_async()

    async def __aexit__(self, *exit: object) -> None:
        self._gate.leave()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)

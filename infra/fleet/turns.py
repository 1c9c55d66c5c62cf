"""Whoever waits for a fleet gets it in turn: points of a live run before re-evaluation, among equals the longest waiting.

Waiting is asking again: one that has not asked for `STALE_S` seconds has given up, or is dead, and holds up nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

STALE_S = 10.0


@dataclass(slots=True)
class _Waiting:
    priority: int
    since: float
    asked: float


class Turns:
    """Of one fleet; `clock` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}

    def ask(self, holder: str, priority: int) -> str:
        """Who is next: the holder itself, or one with a lower `priority` number, or one of the same that has waited longer."""
        now = self._clock()
        self._waiting = {name: one for name, one in self._waiting.items() if now - one.asked < STALE_S}
        since = self._waiting[holder].since if holder in self._waiting else now
        self._waiting[holder] = _Waiting(priority, since, now)
        return min(self._waiting, key=lambda name: (self._waiting[name].priority, self._waiting[name].since))

    def went(self, holder: str) -> None:
        """It has the fleet, and waits no more."""
        self._waiting.pop(holder, None)

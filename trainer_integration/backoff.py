"""What failed is tried again after a pause that doubles with each failure; what did not fail does not wait for it."""

from __future__ import annotations

import time

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class Backoff:
    """Pauses by name: of a duty, or of a thing that several duties need."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}  # when the next try may be, and how long the pause is

    def waits(self, *names: str) -> bool:
        """Whether any of `names` failed so recently that it is not to be tried yet."""
        now = time.monotonic()
        return any(name in self._pauses and now < self._pauses[name][0] for name in names)

    def failed(self, name: str) -> float:
        """Gives the seconds until `name` may be tried again."""
        pause = min(2 * self._pauses[name][1], LONGEST_PAUSE_S) if name in self._pauses else FIRST_PAUSE_S
        self._pauses[name] = (time.monotonic() + pause, pause)
        return pause

    def succeeded(self, *names: str) -> None:
        for name in names:
            self._pauses.pop(name, None)

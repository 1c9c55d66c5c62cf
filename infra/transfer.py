"""A transfer goes on as long as bytes move: it is ended when it is asked to end, or when nothing has moved for too long.

A slow store is not a dead one, so no transfer has a total time of its own. Whoever copies looks between two blocks: a write
that a file system never answers, a hung NFS's for one, is not ended by this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from infra.errors import StoreStalled

STALL_S = 180.0  # longer than one answer of a store may take


class Stopped(Exception):
    """A transfer ended because it was asked to."""


@dataclass(slots=True, kw_only=True)
class Transfer:
    """What the two sides of one file's transfer tell each other, across threads.

    `seen` is given every byte of the file once and in order, in blocks of any size; it may take what it is given as its own
    only during the call. `stopping` may be shared by many transfers.
    """

    stopping: threading.Event = field(default_factory=threading.Event)
    seen: Callable[[memoryview], None] | None = None
    stall_s: float = STALL_S
    n_bytes: int = 0
    last_moved: float = field(default_factory=time.monotonic)

    def moved(self, n_bytes: int) -> None:
        """The store has taken so many bytes more."""
        self.n_bytes += n_bytes
        self.last_moved = time.monotonic()

    def look(self, block: memoryview) -> None:
        if self.seen is not None:
            self.seen(block)

    def go_on(self) -> None:
        """Raises Stopped if it was asked for, StoreStalled if nothing has moved for `stall_s`."""
        if self.stopping.is_set():
            raise Stopped
        still = time.monotonic() - self.last_moved
        if still > self.stall_s:
            raise StoreStalled(f"the store has taken nothing for {still:.0f} s, after {self.n_bytes:,} bytes of a file")

"""What a process has open of the outbox is its own: a child that is forked from it lets go of it all, and holds no lock."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Protocol


class Forked(Protocol):
    def forked(self) -> None:
        """In the child, before anything else there: closes descriptors, and touches no lock of the parent's threads."""


_open: weakref.WeakSet[Forked] = weakref.WeakSet()


def let_go_in_children(made: Forked) -> None:
    _open.add(made)


def _let_go() -> None:
    for made in list(_open):
        with suppress(OSError):  # each for itself
            made.forked()


os.register_at_fork(after_in_child=_let_go)

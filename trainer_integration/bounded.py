"""Training waits for a file system that is not local a moment at most: what takes longer is finished by a thread.

A local one is written in the training thread itself: a thread's turn costs some 3 ms of a due step on busy cores.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
WAIT_S = 0.25  # a server that is busy with a checkpoint may take longer, one that is away for ever
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"})


def wait_s_for(folder: Path) -> float | None:
    """How long to wait for the file system of `folder`; None, for ever, if it is local."""
    path = folder.resolve()
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    halves = [line.partition(" - ") for line in lines]
    mounts = [(Path(left.split()[4]), right.split()[0]) for left, _, right in halves]
    kinds = {mount: kind for mount, kind in mounts if path.is_relative_to(mount)}  # of two at one place, the later
    if not kinds:
        return None
    return None if kinds[max(kinds, key=lambda mount: len(mount.parts))] in LOCAL else WAIT_S


class _Errand(Generic[Result]):
    def __init__(self, work: Callable[[], Result], late: Callable[[Result | Exception], object]) -> None:
        self._work, self._late = work, late
        self._turn, self._done = threading.Lock(), threading.Event()
        self._left = False
        self._outcome: Result | Exception | None = None

    def run(self) -> None:
        try:
            outcome: Result | Exception = self._work()
        except Exception as error:
            logger.debug("pinpoint: it will be told", exc_info=True)
            outcome = error
        with self._turn:
            self._outcome = outcome
            self._done.set()
            left = self._left
        if left:
            try:
                self._late(outcome)
            except Exception:
                logger.exception("pinpoint: what was written late can't be followed up")

    def wait(self, wait_s: float) -> Result | Exception | None:
        try:
            self._done.wait(wait_s)
        finally:
            with self._turn:
                self._left = not self._done.is_set()
        return self._outcome


def within(wait_s: float | None, work: Callable[[], Result], late: Callable[[Result | Exception], object]) -> Result | None:
    """What `work` gives, or raises, if it does in time. Else None, and `late` is called, by a thread, with what came of it."""
    if wait_s is None:
        return work()
    errand = _Errand(work, late)
    try:
        threading.Thread(target=errand.run, name="pinpoint-write", daemon=True).start()
    except RuntimeError:  # no more threads: then it is waited for
        return work()
    outcome = errand.wait(wait_s)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome

"""A file of the outbox is made before it is needed and synced after it was written, in a thread: training waits for neither.

Blank files have no name (O_TMPFILE), so that a killed process leaves none behind; one that is written gets a partial name and
then, by a rename, its own. Where there are no nameless files, each is made when it is needed. Synced means that a file and its
name outlive a machine that loses power; they outlive their process as soon as the rename is done.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
import weakref
from collections import deque
from pathlib import Path

logger = logging.getLogger(__name__)
BLANKS = 2  # a due step writes an intent and a delivery
LATER_S = 0.02  # a step that writes another file now does not wait for the file system to sync this one


class BlankFiles:
    """Of one folder. The thread begins with `prepare`, or with the first file that is to be synced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ready: deque[int] = deque()
        self._written: queue.SimpleQueue[tuple[int, Path] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        weakref.finalize(self, self._written.put, None)

    def prepare(self) -> None:
        with self._starting:
            if self._thread is None:
                arguments = (self.folder, self._ready, self._written)
                self._thread = threading.Thread(target=_serve, args=arguments, name="pinpoint-sync", daemon=True)
                self._thread.start()

    def take(self, partial: Path) -> int:
        """A descriptor of an empty file, to append to. It is nameless, or has the name `partial` already."""
        try:
            blank = self._ready.popleft()
        except IndexError:
            return os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        try:  # anew: a process that was forked meanwhile has the blank, and would share a lock of it
            return os.open(f"/proc/self/fd/{blank}", os.O_WRONLY | os.O_APPEND)
        finally:
            os.close(blank)

    def sync(self, descriptor: int, file: Path) -> None:
        """Soon. Owns the descriptor from now on."""
        self._written.put((descriptor, file))
        self.prepare()

    def close(self, timeout_s: float) -> None:
        """Syncs what is still to be synced, for so long at most."""
        if self._thread is not None:
            self._written.put(None)
            self._thread.join(timeout_s)


def write_whole(descriptor: int, data: bytes) -> None:
    """Raises OSError, of a full disk for one."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def give_name(descriptor: int, partial: Path, file: Path) -> None:
    """To a file that was `take`n; with all that was written, or not at all."""
    if os.fstat(descriptor).st_nlink == 0:
        _link(descriptor, partial)
    partial.rename(file)


def _link(descriptor: int, path: Path) -> None:
    """By a call of its own kind: without a folder's descriptor, Python would make a link to the link in /proc."""
    place = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.link(f"{descriptor}", path, src_dir_fd=place, follow_symlinks=True)
    finally:
        os.close(place)


def _serve(folder: Path, ready: deque[int], written: queue.SimpleQueue[tuple[int, Path] | None]) -> None:
    nameless = _has_nameless(folder)
    while True:
        while nameless and len(ready) < BLANKS:
            try:
                ready.append(_nameless(folder))
            except OSError:  # a full disk, which whoever needs a file hears of
                break
        found = written.get()
        if found is None:
            break
        time.sleep(LATER_S)
        _sync(*found, folder)
    while ready:
        os.close(ready.popleft())


def _sync(descriptor: int, file: Path, folder: Path) -> None:
    try:
        os.fsync(descriptor)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
    except OSError as error:
        logger.warning("pinpoint: %s would not outlive a loss of power: %s", file.name, error)
    finally:
        os.close(descriptor)


def _nameless(folder: Path) -> int:
    return os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o644)


def _has_nameless(folder: Path) -> bool:
    """Whether files can be made without a name, and get one later."""
    probe = folder / f"{uuid.uuid4().hex}.partial"
    try:
        descriptor = _nameless(folder)
        try:
            _link(descriptor, probe)
        finally:
            os.close(descriptor)
        probe.unlink()
    except (OSError, AttributeError):  # the latter where Linux is not
        return False
    return True

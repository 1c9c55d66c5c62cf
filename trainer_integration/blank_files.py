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

from trainer_integration.forks import let_go_in_children

logger = logging.getLogger(__name__)
BLANKS = 2  # a due step writes an intent and a delivery
HELD = 16  # files that wait to be synced are kept open up to this many, and opened again by their names above
LATER_S = 0.02  # a step that writes another file now does not wait for the file system to sync this one


Written = queue.SimpleQueue[tuple[int | None, Path] | None]


class BlankFiles:
    """Of one folder. The thread begins with `prepare`, or with the first file that is to be synced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begin()
        let_go_in_children(self)

    def _begin(self) -> None:
        self._ready: deque[int] = deque()
        self._written: Written = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        weakref.finalize(self, self._written.put, None)

    def forked(self) -> None:
        """In a child: blank files are the parent's, who would write into the same ones; so is what is to be synced."""
        blanks = self._ready
        self._begin()
        while blanks:
            os.close(blanks.popleft())

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
        held: int | None = descriptor
        if self._written.qsize() >= HELD:
            os.close(descriptor)
            held = None
        self._written.put((held, file))
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


def _serve(folder: Path, ready: deque[int], written: Written) -> None:
    nameless, ended = _has_nameless(folder), False
    while not ended:
        while nameless and len(ready) < BLANKS:
            try:
                ready.append(_nameless(folder))
            except OSError:  # a full disk, which whoever needs a file hears of
                break
        found = [written.get()]
        if found[0] is not None:
            time.sleep(LATER_S)
        while not written.empty():  # nobody else takes from it
            found.append(written.get())
        ended = None in found
        _sync([each for each in found if each is not None], folder)
    while ready:
        os.close(ready.popleft())


def _sync(files: list[tuple[int | None, Path]], folder: Path) -> None:
    """Each file, and then their names in the folder, all at once."""
    for descriptor, file in files:
        try:
            _sync_file(descriptor, file)
        except OSError as error:
            logger.warning("pinpoint: %s would not outlive a loss of power: %s", file.name, error)
    if files:
        try:
            _sync_file(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), folder)
        except OSError as error:
            logger.warning("pinpoint: names in %s would not outlive a loss of power: %s", folder, error)


def _sync_file(descriptor: int | None, file: Path) -> None:
    """Owns the descriptor; None to open the file, unless it was delivered meanwhile."""
    try:
        held = os.open(file, os.O_RDONLY) if descriptor is None else descriptor
    except FileNotFoundError:
        return
    try:
        os.fsync(held)
    finally:
        os.close(held)


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

"""Memory that a snapshot has left is filled again: most of a copy's cost is the kernel making new pages, not the copy.

A staged file keeps a second name in the spare folder. When the first is gone, the snapshot was sent and freed; whoever still
has it open, in any process, is seen by the kernel, which then refuses a lease. On tmpfs a rank that wrote the file before maps
it. Only files of exports that succeeded are kept: each of their pages exists, so that writing to a mapping can't fail there.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra.staging import free_spare, lock_spare
from trainer_integration.sharded.files import ShardFile, write_rows

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

TMPFS = 0x01021994  # f_type: https://man7.org/linux/man-pages/man2/statfs.2.html
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14: a call for many page faults


class Sink(Protocol):
    """Where a rank writes to a file: runs of `width` bytes, each `stride` bytes after the one before."""

    def write_rows(self, data: memoryview, offset: int, width: int, stride: int) -> None: ...


class Descriptor:
    """A file that is new, or was never written by this rank."""

    def __init__(self, number: int) -> None:
        self.number = number

    def write_rows(self, data: memoryview, offset: int, width: int, stride: int) -> None:
        write_rows(self.number, data, offset, width, stride)


class Mapped:
    """A file on tmpfs all of whose pages exist. It has to be closed: a mapping counts as having the file open."""

    def __init__(self, descriptor: int) -> None:
        import numpy as np

        self.map = mmap.mmap(descriptor, 0)
        self.bytes: Bytes = np.frombuffer(self.map, np.uint8)

    def close(self) -> None:
        del self.bytes
        self.map.close()

    def write_rows(self, data: memoryview, offset: int, width: int, stride: int) -> None:
        import numpy as np

        source = np.frombuffer(data, np.uint8)
        if width == stride:
            self._populate(offset, len(source))
            self.bytes[offset : offset + len(source)] = source
            return
        rows = len(source) // width
        target = np.lib.stride_tricks.as_strided(self.bytes[offset:], (rows, width), (stride, 1))
        target[:] = source.reshape(rows, width)

    def _populate(self, offset: int, length: int) -> None:
        begin = offset - offset % mmap.PAGESIZE
        with suppress(OSError):  # an older kernel has a page fault for each instead
            self.map.madvise(POPULATE_WRITE, begin, offset + length - begin)


class Spare:
    """One rank's view of `folder`, which lies on the file system of the staging area and belongs to one exporter at a time.

    It is deleted when the exporter is. If its process was killed the next one takes it over, or a sweep frees it: the kernel
    gives back its lock. While another process has it, nothing is kept.
    """

    def __init__(self, folder: Path, *, leads: bool) -> None:
        self._lock = lock_spare(folder) if leads else None
        self.folder, self.leads = folder, self._lock is not None
        self.written: dict[str, int] = {}  # inodes, by name, of what this rank wrote and nobody has replaced
        if self._lock is not None:
            folder.mkdir(parents=True, exist_ok=True)
            weakref.finalize(self, free_spare, folder, self._lock)

    def free(self, files: Sequence[ShardFile]) -> set[str]:
        """Names of those that can be filled again; what else is there is given up."""
        wanted, found = {file.name: file.n_bytes for file in files}, set[str]()
        for path in self.folder.iterdir() if self.leads else ():
            status = path.stat()
            if status.st_nlink == 1 and status.st_size == wanted.get(path.name) and nobody_has_open(path):
                found.add(path.name)
            else:
                path.unlink(missing_ok=True)
        return found

    def sink(self, name: str, descriptor: int, closing: ExitStack) -> Sink:
        """With its second name, and the inode that this rank filled, a file is the one that was kept."""
        status = os.fstat(descriptor)
        if status.st_nlink < 2 or self.written.get(name) != status.st_ino or not on_tmpfs(descriptor):
            return Descriptor(descriptor)
        mapped = Mapped(descriptor)
        closing.callback(mapped.close)
        return mapped

    def keep(self, staged: Path, names: Sequence[str], inodes: dict[str, int]) -> None:
        """After an export that succeeded on every rank; `inodes` are those that this rank wrote to."""
        self.written = inodes
        for name in names if self.leads else ():
            with suppress(OSError):  # it is there already, or somebody was quicker to free it
                os.link(staged / name, self.folder / name)


def nobody_has_open(path: Path) -> bool:
    """Asks the kernel, which grants a write lease only on a file that no other descriptor or mapping of any process has.

    Where there are no leases, somebody may. https://man7.org/linux/man-pages/man2/F_GETLEASE.2const.html
    """
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # ignored; SIGIO would end the trainer if one opened it now
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            return True
        finally:
            os.close(descriptor)
    return False


def on_tmpfs(descriptor: int) -> bool:
    """Elsewhere a page can be missing again, and a write to a mapping that fails ends the process."""
    status = (ctypes.c_long * 64)()
    return ctypes.CDLL(None).fstatfs(descriptor, status) == 0 and status[0] == TMPFS

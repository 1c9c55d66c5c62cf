"""Memory that a snapshot has left is filled again: most of a copy's cost is the kernel making new pages, not the copy.

A staged file keeps a second name in the spare folder. When the first is gone, the snapshot was sent and freed, and nobody but
us has the file. A rank that wrote it before maps it, so that the next copy is one in memory and nothing else. Only files of
exports that succeeded are kept: each of their pages exists, so that writing to a mapping can't fail.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra.staging import free_spare, lock_spare
from trainer_integration.sharded.files import ShardFile, write_rows

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]


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
    """A file all of whose pages exist."""

    def __init__(self, descriptor: int) -> None:
        import numpy as np

        self.bytes: Bytes = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)

    def write_rows(self, data: memoryview, offset: int, width: int, stride: int) -> None:
        import numpy as np

        source = np.frombuffer(data, np.uint8)
        if width == stride:
            self.bytes[offset : offset + len(source)] = source
            return
        rows = len(source) // width
        target = np.lib.stride_tricks.as_strided(self.bytes[offset:], (rows, width), (stride, 1))
        target[:] = source.reshape(rows, width)


class Spare:
    """One rank's view of `folder`, which lies on the file system of the staging area and belongs to one exporter at a time.

    It is deleted when the exporter is. If its process was killed the next one takes it over, or a sweep frees it: the kernel
    gives back its lock. While another process has it, nothing is kept.
    """

    def __init__(self, folder: Path, *, leads: bool) -> None:
        self._lock = lock_spare(folder) if leads else None
        self.folder, self.leads = folder, self._lock is not None
        self.written: dict[str, int] = {}  # inodes, by name, of what this rank wrote and nobody has replaced
        self.mapped: dict[str, Mapped] = {}
        if self._lock is not None:
            folder.mkdir(parents=True, exist_ok=True)
            weakref.finalize(self, free_spare, folder, self._lock)

    def free(self, files: Sequence[ShardFile]) -> set[str]:
        """Names of those that can be filled again; what else is there is given up."""
        wanted, found = {file.name: file.n_bytes for file in files}, set[str]()
        for path in self.folder.iterdir() if self.leads else ():
            status = path.stat()
            if status.st_nlink == 1 and status.st_size == wanted.get(path.name):
                found.add(path.name)
            else:
                path.unlink(missing_ok=True)
        return found

    def sink(self, name: str, descriptor: int) -> Sink:
        """With its second name, and the inode that this rank filled, a file is the one that was kept."""
        status = os.fstat(descriptor)
        if status.st_nlink < 2 or self.written.get(name) != status.st_ino:
            self.mapped.pop(name, None)
            return Descriptor(descriptor)
        if name not in self.mapped:
            self.mapped[name] = Mapped(descriptor)
        return self.mapped[name]

    def keep(self, staged: Path, names: Sequence[str], inodes: dict[str, int]) -> None:
        """After an export that succeeded on every rank; `inodes` are those that this rank wrote to."""
        self.written = inodes
        for name in names if self.leads else ():
            with suppress(OSError):  # it is there already, or somebody was quicker to free it
                os.link(staged / name, self.folder / name)

"""Where a rank writes its part of a file: through a mapping if no write to that can fail, by `pwrite` otherwise."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from trainer_integration.sharded.files import write_rows

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

TMPFS = 0x01021994  # f_type: https://man7.org/linux/man-pages/man2/statfs.2.html
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14: a call for many page faults


class Sink(Protocol):
    """Where a rank writes to a file: runs of `width` bytes, each `stride` bytes after the one before."""

    def write_rows(self, data: memoryview, offset: int, width: int, stride: int) -> None: ...


class Descriptor:
    """A file that is new, is not in memory, or was never written by this rank."""

    def __init__(self, number: int) -> None:
        self.number = number

    def write_rows(self, data: memoryview, offset: int, width: int, stride: int) -> None:
        write_rows(self.number, data, offset, width, stride)


class Mapped:
    """A file on tmpfs all of whose pages exist; the first time that a page is written costs a fault, later ones nothing."""

    def __init__(self, descriptor: int) -> None:
        import numpy as np

        self.map = mmap.mmap(descriptor, 0)
        self.bytes: Bytes = np.frombuffer(self.map, np.uint8)
        self._populated: set[tuple[int, int]] = set()

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
        """Once: what this rank writes is the same in each export."""
        if (offset, length) in self._populated:
            return
        self._populated.add((offset, length))
        begin = offset - offset % mmap.PAGESIZE
        with suppress(OSError):  # an older kernel has a page fault for each instead
            self.map.madvise(POPULATE_WRITE, begin, offset + length - begin)


def on_tmpfs(descriptor: int) -> bool:
    """Elsewhere a page can be missing again, and a write to a mapping that fails ends the process."""
    status = (ctypes.c_long * 64)()
    return ctypes.CDLL(None).fstatfs(descriptor, status) == 0 and status[0] == TMPFS

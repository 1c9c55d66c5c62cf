"""What a rank holds open from one export to the next: descriptors that its node's ranks share, and its mappings of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

from trainer_integration.sharded.sinks import Descriptor, Mapped, Sink, on_tmpfs


class KeptFile:
    """`filled` says that an export that succeeded wrote all of it: each page exists, and it can be mapped.

    A mapping keeps a descriptor of its own. What is `borrowed` is neither lent on nor leased, and needs no other then.
    """

    def __init__(self, descriptor: int, *, borrowed: bool = False) -> None:
        self.descriptor, self.inode, self.borrowed = descriptor, os.fstat(descriptor).st_ino, borrowed
        self.filled = False
        self.mapped: Mapped | None = None

    def sink(self) -> Sink:
        if self.mapped is None and self.filled and on_tmpfs(self.descriptor):
            self.mapped = Mapped(self.descriptor)
            if self.borrowed:
                os.close(self.descriptor)
        return self.mapped or Descriptor(self.descriptor)

    def close(self) -> None:
        if self.mapped is not None:
            with suppress(BufferError):  # a forked child of a process that was writing
                self.mapped.close()
        if self.mapped is None or not self.borrowed:
            os.close(self.descriptor)


class KeptFiles:
    """By name. As long as a file is here, no other can have its inode's number."""

    def __init__(self) -> None:
        self._files: dict[str, KeptFile] = {}
        self._closing = threading.Lock()

    def __iter__(self) -> Iterator[tuple[str, KeptFile]]:
        return iter(list(self._files.items()))

    def get(self, name: str, inode: int) -> KeptFile | None:
        """Only if it is that very file."""
        file = self._files.get(name)
        return file if file is not None and file.inode == inode else None

    def put(self, name: str, descriptor: int, *, borrowed: bool = False) -> KeptFile:
        """Instead of what had the name. The descriptor belongs to this from now on."""
        self.drop(name)
        self._files[name] = file = KeptFile(descriptor, borrowed=borrowed)
        return file

    def drop(self, name: str) -> None:
        with self._closing:
            file = self._files.pop(name, None)
            if file is not None:
                file.close()

    def lent(self, name: str) -> int | None:
        """A descriptor for another process, from the lender's thread."""
        with self._closing:
            file = self._files.get(name)
            return os.dup(file.descriptor) if file is not None else None

    def close(self) -> None:
        for name in list(self._files):
            self.drop(name)

    def close_in_child(self) -> None:
        """After a fork, at which another thread of the parent may have had the lock."""
        self._closing = threading.Lock()
        self.close()

"""A checkpoint is read by name and byte range, the same way from a folder and from object storage, and never written.

What a folder lists is judged before it is opened: a link that leaves the folder, a device or a pipe is never read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra.errors import FileDamaged, SnapshotMissing
from infra.store import Store

PARALLEL_READS = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the checkpoint: its size in bytes, and why it may not be opened, if so."""

    size: int
    stray: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [start, end) of a file."""

    name: str
    start: int
    end: int


class CheckpointReader(Protocol):
    @property
    def location(self) -> str:
        """As the user would name it."""

    @property
    def max_reads(self) -> int:
        """How many small reads one validation may make."""

    def entries(self) -> dict[str, Entry]:
        """The files at the top of the checkpoint. Raises SnapshotMissing if there is no such place."""

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Raises FileDamaged for a file that can't be read, SnapshotMissing for one that went away."""

    def read_ranges(self, ranges: Sequence[Range]) -> Iterable[bytes]:
        """The same for many, in their order."""


class LocalFolder:
    """A checkpoint on this machine. Links may lead to other files of the folder or, in a hub cache, to its blobs."""

    max_reads = 1_000_000

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def location(self) -> str:
        return str(self.folder)

    def entries(self) -> dict[str, Entry]:
        if not self.folder.is_dir():
            raise SnapshotMissing(f"checkpoint folder {self.folder} does not exist")
        try:
            found = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
        except PermissionError as error:
            raise FileDamaged(f"{self.folder} may not be read: {error.strerror}", subject=self.folder.name) from None
        return dict(self._judged(found))

    def _judged(self, found: list[os.DirEntry[str]]) -> Iterator[tuple[str, Entry]]:
        homes = self._homes()
        for item in found:
            status: os.stat_result | None = None
            try:
                status = item.stat()
            except OSError as error:  # else a link to nothing, or gone meanwhile
                if error.errno == errno.ELOOP:
                    yield item.name, Entry(0, "is a link that leads to itself")
                    continue
            if item.is_symlink() and not any(Path(item.path).resolve().is_relative_to(home) for home in homes):
                yield item.name, Entry(0, "is a link that leaves the folder")
            elif status is not None and stat.S_ISREG(status.st_mode):
                yield item.name, Entry(status.st_size)
            elif status is not None and not stat.S_ISDIR(status.st_mode):
                yield item.name, Entry(0, "is a device or a pipe, not a file")

    def _homes(self) -> list[Path]:
        folder = self.folder.resolve()
        # https://huggingface.co/docs/huggingface_hub/guides/manage-cache: models--owner--name/{snapshots/REVISION,blobs}
        repository = folder.parent.parent
        in_hub_cache = folder.parent.name == "snapshots" and repository.name.startswith("models--")
        return [folder, repository / "blobs"] if in_hub_cache else [folder]

    def read_range(self, name: str, start: int, end: int) -> bytes:
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        except FileNotFoundError:
            raise SnapshotMissing(f"{self.folder / name} is gone") from None
        except OSError as error:
            raise FileDamaged(f"{name} in {self.folder} can't be read: {error.strerror}", subject=name) from error

    def read_ranges(self, ranges: Sequence[Range]) -> Iterable[bytes]:
        return (self.read_range(one.name, one.start, one.end) for one in ranges)


class StorePrefix:
    """A checkpoint in object storage, below `prefix` of a store; "" is its root."""

    max_reads = 4096

    def __init__(self, store: Store, prefix: str = "") -> None:
        self.store, self.prefix = store, prefix

    @property
    def location(self) -> str:
        return self.store.url_of(self.prefix) if self.prefix else self.store.url

    def entries(self) -> dict[str, Entry]:
        start = len(self.prefix) + 1 if self.prefix else 0
        found = {key[start:]: Entry(size) for key, size in self.store.list(self.prefix).items()}
        if not found:
            raise SnapshotMissing(f"there is nothing at {self.location}")
        return {name: entry for name, entry in found.items() if "/" not in name}

    def read_range(self, name: str, start: int, end: int) -> bytes:
        try:
            return self.store.read_range(f"{self.prefix}/{name}" if self.prefix else name, start, end)
        except FileNotFoundError:
            raise SnapshotMissing(f"{self.location}/{name} is gone") from None

    def read_ranges(self, ranges: Sequence[Range]) -> Iterable[bytes]:
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            return list(pool.map(lambda one: self.read_range(one.name, one.start, one.end), ranges))

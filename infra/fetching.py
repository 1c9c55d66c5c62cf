"""A snapshot is brought to a folder in parallel ranged reads, and is not there before every file of it has its digest.

Memory: `READS_AT_ONCE` ranges of `RANGE_BYTES`, whatever the size of the model, and as much again in the store's client.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from infra.digests import digest_file
from infra.errors import NoCapacity, SnapshotInvalid, SnapshotMissing
from infra.model import Manifest
from infra.snapshot import MANIFEST
from infra.store import Store
from infra.transfer import Transfer

RANGE_BYTES = 16 * 2**20
READS_AT_ONCE = 8
REMEDY = "set PINPOINT_STAGING_DIR to a larger place, or raise PINPOINT_FETCHED_BYTES"


def fetch(store: Store, prefix: str, manifest: Manifest, folder: Path, stopping: threading.Event | None = None) -> None:
    """Brings a snapshot to a local folder and verifies every file by digest. What a failed one left there is the caller's.

    Raises SnapshotInvalid naming a file whose bytes are not the manifest's, SnapshotMissing if one is gone, StoreError;
    Stopped, after the ranges that are under way, once `stopping` is set.
    """
    transfer = Transfer(stopping=stopping or threading.Event())
    for name in manifest.files:
        if Path(name).name != name:
            raise SnapshotInvalid(f"{MANIFEST} names {name!r}, which is outside of the snapshot", subject=name)
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in manifest.files.items():
        with (folder / name).open("wb") as file, _full_disk(folder):
            if entry.size:
                os.posix_fallocate(file.fileno(), 0, entry.size)
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        reads = [
            pool.submit(_read, transfer, store, prefix, folder / name, begin, end) for name, begin, end in _ranges(manifest)
        ]
        try:
            for read in reads:
                read.result()
            list(pool.map(lambda name: _verify(folder / name, manifest), manifest.files))
        finally:
            pool.shutdown(cancel_futures=True)


def make_room(folder: Path, n_bytes: int, limit_bytes: int | None) -> None:
    """Raises NoCapacity, with numbers, unless so many bytes may be put below `folder`, beside what others keep there."""
    kept = sum(map(_size_of, folder.rglob("*"))) if folder.exists() else 0
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    room = free if limit_bytes is None else min(free, max(0, limit_bytes - kept))
    if n_bytes > room:
        limit = "" if limit_bytes is None else f", and snapshots may take {limit_bytes:,} bytes, of which {kept:,} are taken"
        raise NoCapacity(f"a snapshot of {n_bytes:,} bytes has no room in {folder}: {free:,} are free there{limit}; {REMEDY}")


def _ranges(manifest: Manifest) -> Iterator[tuple[str, int, int]]:
    for name, entry in manifest.files.items():
        for begin in range(0, entry.size, RANGE_BYTES):
            yield name, begin, min(begin + RANGE_BYTES, entry.size)


def _read(transfer: Transfer, store: Store, prefix: str, path: Path, begin: int, end: int) -> None:
    transfer.go_on()
    try:
        data = store.read_range(f"{prefix}/{path.name}", begin, end)
    except FileNotFoundError:
        raise SnapshotMissing(f"{store.url_of(prefix)}/{path.name} is gone") from None
    if len(data) != end - begin:
        raise SnapshotInvalid(f"{path.name} ends at byte {begin + len(data)}, the manifest says later", subject=path.name)
    with path.open("rb+") as file, _full_disk(path.parent):
        file.seek(begin)
        file.write(data)
    transfer.moved(len(data))


@contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoCapacity(f"a snapshot has no room in {folder}: {error.strerror}; {REMEDY}") from None


def _size_of(path: Path) -> int:
    """0 for a folder, and for a file that somebody has deleted meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def _verify(path: Path, manifest: Manifest) -> None:
    got, entry = digest_file(path).entry, manifest.files[path.name]
    if got != entry:
        raise SnapshotInvalid(f"{path.name} has digest {got.digest}, the manifest says {entry.digest}", subject=path.name)

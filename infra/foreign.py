"""A checkpoint that Pinpoint did not write is digested on first use, and again only if its files have changed since.

The manifest is noted in the point's store under this host's name and the files' names, sizes, inodes and times of change, or
in object storage under the address and the times of writing; nothing is written beside the checkpoint. A note can't vouch for
wrong weights: engines prove tensor by tensor what they hold.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import xxhash
from pydantic import TypeAdapter

from infra.digests import FileDigest
from infra.errors import AlreadyExists, SnapshotMissing
from infra.model import EvalPoint, Manifest
from infra.snapshot import assemble, describe
from infra.store import Store
from infra.validation.readers import CheckpointReader, LocalFolder, StorePrefix

DIGESTS = "digests"
BLOCK_BYTES = 16 * 2**20
_MANIFEST = TypeAdapter(Manifest)
Place = LocalFolder | StorePrefix


def describe_once(store: Store, folder: Path, files: Iterable[str], point: EvalPoint) -> Manifest:
    """As `describe`, from the note of an earlier use if there is one. Raises StoreError, SnapshotInvalid, SnapshotMissing."""
    return describe_place_once(store, LocalFolder(folder), files, point)


def describe_place_once(store: Store, place: Place, files: Iterable[str], point: EvalPoint) -> Manifest:
    """The same of a folder, or of a checkpoint in object storage, every byte of which is read through this process."""
    names = sorted(files)
    if (known := noted(store, place, names, point)) is not None:
        return known
    key = _key(place, names)
    with gone_is_missing(place):
        if isinstance(place, LocalFolder):
            manifest = describe(place.folder, names, point)
        else:
            manifest = _describe_stored(place, names, point)
    if key == _key(place, names):  # else it was written to while it was read
        with suppress(AlreadyExists):
            store.create(key, _MANIFEST.dump_json(manifest))
    return manifest


def noted(store: Store, place: Place, files: Iterable[str], point: EvalPoint) -> Manifest | None:
    """What an earlier use has noted of these very files, which costs no reading of them. Raises SnapshotMissing."""
    key = _key(place, files)
    with suppress(FileNotFoundError, ValueError):  # a note that can't be read is no note
        known = _MANIFEST.validate_json(store.read(key))
        return replace(known, run=point.run, step=point.step, attempt=point.attempt)
    return None


def fingerprint(place: Place, files: Iterable[str]) -> str:
    """Another as soon as one of the files is another, as far as that can be told without reading them."""
    names = sorted(files)
    with gone_is_missing(place):
        lines = _lines_of_folder(place.folder, names) if isinstance(place, LocalFolder) else _lines_of_prefix(place, names)
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())


@contextmanager
def gone_is_missing(place: CheckpointReader) -> Iterator[None]:
    """A checkpoint that its trainer deletes while it is read is missing, and no bug of ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise SnapshotMissing(f"checkpoint {place.location} was deleted while it was read: {error}") from error


def _key(place: Place, files: Iterable[str]) -> str:
    return f"{DIGESTS}/{fingerprint(place, files)}.json"


def _lines_of_folder(folder: Path, names: list[str]) -> list[str]:
    stats = [(name, (folder / name).stat()) for name in names]
    lines = [socket.gethostname(), str(folder.resolve())]
    return lines + [f"{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}" for name, stat in stats]


def _lines_of_prefix(place: StorePrefix, names: list[str]) -> list[str]:
    sizes, written = place.store.list(place.prefix), place.store.written(place.prefix)
    paths = [f"{place.prefix}/{name}" if place.prefix else name for name in names]
    if gone := [path for path in paths if path not in sizes or path not in written]:
        raise FileNotFoundError(f"{place.store.url_of(gone[0])} is gone")
    return [place.location, *(f"{path} {sizes[path]} {written[path]}" for path in paths)]


def _describe_stored(place: StorePrefix, names: list[str], point: EvalPoint) -> Manifest:
    """Memory does not grow with the checkpoint: block after block, each read once."""
    sizes = {name: entry.size for name, entry in place.entries().items()}
    digests = []
    for name in names:
        digest = FileDigest(Path(name), place, sizes[name])
        for start in range(0, sizes[name], BLOCK_BYTES):
            digest.update(memoryview(place.read_range(name, start, min(start + BLOCK_BYTES, sizes[name]))))
        digests.append(digest)
    entries = {digest.name: digest.entry for digest in digests}
    return assemble(entries, {name: entry for digest in digests for name, entry in digest.tensors.items()}, point)

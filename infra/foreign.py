"""A checkpoint that Pinpoint did not write is digested on first use, and again only if its files have changed since.

The manifest is noted in the point's store under this host's name and the files' names, sizes, inodes and times of change;
nothing is written beside the checkpoint. A note can't vouch for wrong weights: engines prove tensor by tensor what they hold.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import xxhash
from pydantic import TypeAdapter

from infra.errors import AlreadyExists
from infra.model import EvalPoint, Manifest
from infra.snapshot import describe
from infra.store import Store

DIGESTS = "digests"
_MANIFEST = TypeAdapter(Manifest)


def describe_once(store: Store, folder: Path, files: Iterable[str], point: EvalPoint) -> Manifest:
    """As `describe`, from the note of an earlier use if there is one. Raises StoreError, SnapshotInvalid."""
    names = sorted(files)
    key = f"{DIGESTS}/{_fingerprint(folder, names)}.json"
    with suppress(FileNotFoundError, ValueError):  # a note that can't be read is no note
        noted = _MANIFEST.validate_json(store.read(key))
        return replace(noted, run=point.run, step=point.step, attempt=point.attempt)
    manifest = describe(folder, names, point)
    if key == f"{DIGESTS}/{_fingerprint(folder, names)}.json":  # else it was written to while it was read
        with suppress(AlreadyExists):
            store.create(key, _MANIFEST.dump_json(manifest))
    return manifest


def _fingerprint(folder: Path, names: list[str]) -> str:
    stats = [(name, (folder / name).stat()) for name in names]
    lines = [socket.gethostname(), str(folder.resolve())]
    lines += [f"{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}" for name, stat in stats]
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())

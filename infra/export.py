"""A snapshot's bytes reach the store in parallel. An export that is tried again sends only what is
missing; one that is cancelled sends nothing more once it has returned.

What was sent is noted beside the lease, by digest; the manifest follows when all of it is there. Memory: `FILES_AT_ONCE` files
of `PARTS_AT_ONCE` parts of `PART_BYTES` each (infra/s3_objects.py) are 128 MiB, and as much again in the client, whatever the
size of the model (`memory_mb` of benchmarks/export_throughput.py); a local store needs a few MiB.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from infra.concurrency import gather_all, in_thread
from infra.config import load_settings
from infra.digests import FileDigest, digest_file
from infra.errors import AlreadyExists, ExportFailed, SnapshotMissing
from infra.leases import keep_hold, sent_key
from infra.model import FileEntry, Manifest, StagedPart, TensorEntry
from infra.snapshot import MANIFEST, read_manifest, validate, write_manifest
from infra.store import Store
from infra.transfer import Transfer
from infra.validation.adapters import ADAPTER_CONFIG, adapter_files, is_adapter, read_adapter
from infra.validation.layout import CONFIG, INDEX, METADATA
from infra.validation.readers import LocalFolder

logger = logging.getLogger(__name__)
FILES_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Files that are in the store: what the manifest will say of them, and how many bytes had to be sent for that."""

    files: dict[str, FileEntry]
    tensors: dict[str, TensorEntry]
    n_bytes: int

    @classmethod
    def of(cls, parts: Iterable[Sent]) -> Sent:
        parts = list(parts)
        return cls(
            files={name: entry for part in parts for name, entry in part.files.items()},
            tensors={name: entry for part in parts for name, entry in part.tensors.items()},
            n_bytes=sum(part.n_bytes for part in parts),
        )


async def send(store: Store, folder: Path, files: Iterable[str], prefix: str) -> Sent:
    """Sends those of the folder's files that are not there yet. Raises StoreError; SnapshotInvalid for a broken header."""
    there = await asyncio.to_thread(store.list, prefix)
    slots, stopping = asyncio.Semaphore(FILES_AT_ONCE), threading.Event()

    async def send_one(name: str) -> Sent:
        async with slots:
            size = there.get(f"{prefix}/{name}")
            return await in_thread(partial(_send_file, store, folder / name, prefix, size, stopping), stopping)

    return Sent.of(await gather_all(send_one(name) for name in files))


def send_part_there(store_url: str, part: StagedPart, prefix: str, *, with_metadata: bool, of_several: bool) -> Sent:
    """`send_part` for a process of its own on that host, which is killed if it is not to go on."""
    load_settings().export_s3()
    return asyncio.run(send_part(Store(store_url), part, prefix, with_metadata=with_metadata, of_several=of_several))


async def send_part(store: Store, part: StagedPart, prefix: str, *, with_metadata: bool, of_several: bool = False) -> Sent:
    """Sends what this host has of a staged model or adapter; a part `of_several` has the weights that it names, or none.

    Raises as `send`, and SnapshotMissing.
    """
    return await send(store, Path(part.path), await asyncio.to_thread(_names_of, part, with_metadata, of_several), prefix)


def _names_of(part: StagedPart, with_metadata: bool, of_several: bool) -> list[str]:
    reader = LocalFolder(Path(part.path))
    here = {name for name, entry in reader.entries().items() if not entry.stray}
    for lost in sorted(set(part.shards) - here):
        raise SnapshotMissing(
            f"{reader.folder / lost} is not on {socket.gethostname()}: staging did not finish, or it was freed"
        )
    if not part.shards and not of_several:
        return adapter_files(read_adapter(reader)) if is_adapter(reader) else validate(reader.folder)
    metadata = {*METADATA, INDEX} if ADAPTER_CONFIG not in here else {*METADATA, ADAPTER_CONFIG} - {CONFIG}
    return [*(sorted(here & metadata) if with_metadata else []), *part.shards]


async def complete(store: Store, prefix: str, manifest: Manifest, owner: str) -> None:
    """Makes a snapshot of the files at `prefix`, which `owner` holds.

    Raises AlreadyExists if it is one already, of other content, ExportFailed if the hold was lost or a file is not there.
    """
    await in_thread(partial(_complete, store, prefix, manifest, owner), threading.Event())


def _complete(store: Store, prefix: str, manifest: Manifest, owner: str) -> None:
    """Whoever was away for longer than its lease may find its files swept: they are not promised then."""
    keep_hold(store, prefix, owner)
    there = store.list(prefix)
    lost = sorted(name for name, entry in manifest.files.items() if there.get(f"{prefix}/{name}") != entry.size)
    if lost:
        raise ExportFailed(f"{store.url_of(prefix)}/{lost[0]} is not there any more, of {len(manifest.files)} files")
    try:
        write_manifest(store, prefix, manifest)
    except AlreadyExists:
        there_already = read_manifest(store, prefix)
        if replace(there_already, made_by=manifest.made_by) != manifest:  # a killed flow may go on on another host
            raise
    try:
        keep_hold(store, prefix, owner)
    except ExportFailed:
        store.delete(f"{prefix}/{MANIFEST}")
        raise


def _send_file(store: Store, path: Path, prefix: str, size_there: int | None, stopping: threading.Event) -> Sent:
    """In a thread of its own: what was sent is noted even if nobody waits for it any more."""
    if size_there == path.stat().st_size and (noted := _noted(store, prefix, path.name)):
        kept = digest_file(path)
        if kept.entry.digest == noted:
            return Sent(files={path.name: kept.entry}, tensors=kept.tensors, n_bytes=0)
    digest = FileDigest(path)
    store.upload(path, f"{prefix}/{path.name}", Transfer(stopping=stopping, seen=digest.update))
    store.write(sent_key(prefix, path.name), digest.entry.digest.encode())
    return Sent(files={path.name: digest.entry}, tensors=digest.tensors, n_bytes=digest.size)


def _noted(store: Store, prefix: str, name: str) -> str:
    """The digest of a file that was sent whole; "" if none was."""
    try:
        return store.read(sent_key(prefix, name)).decode()
    except FileNotFoundError:
        return ""

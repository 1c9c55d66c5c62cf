"""A snapshot's bytes reach the store in parallel, each file once: an export that is tried again sends only what is missing, and
one that is cancelled sends nothing more once it has returned.

What was sent is noted beside the lease, by digest; the manifest follows when all of it is there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from pathlib import Path

from infra.concurrency import gather_all, in_thread
from infra.errors import AlreadyExists
from infra.leases import sent_key
from infra.model import EvalPoint, Manifest
from infra.snapshot import describe, read_manifest, validate, write_manifest
from infra.store import Store

logger = logging.getLogger(__name__)
PARALLEL_UPLOADS = 4


async def describe_folder(folder: Path, point: EvalPoint) -> Manifest:
    """Validates a checkpoint folder and reads all of it once. Raises SnapshotError."""
    files = await asyncio.to_thread(validate, folder)
    return await asyncio.to_thread(describe, folder, files, point)


async def send(store: Store, folder: Path, manifest: Manifest, prefix: str) -> int:
    """Sends what is not there yet, the manifest last; gives the bytes sent. Raises StoreError."""
    there = await asyncio.to_thread(store.list, prefix)
    slots, stopping = asyncio.Semaphore(PARALLEL_UPLOADS), threading.Event()

    async def send_one(name: str) -> int:
        async with slots:
            entry = manifest.files[name]
            if there.get(f"{prefix}/{name}") == entry.size and await _was_sent(store, prefix, name, entry.digest):
                return 0
            await in_thread(partial(_send_file, store, folder, prefix, name, entry.digest, stopping), stopping)
            return entry.size

    sent = sum(await gather_all(send_one(name) for name in manifest.files))
    try:
        await in_thread(partial(write_manifest, store, prefix, manifest), stopping)
    except AlreadyExists:
        if await asyncio.to_thread(read_manifest, store, prefix) != manifest:
            raise
    return sent


def _send_file(store: Store, folder: Path, prefix: str, name: str, digest: str, stopping: threading.Event) -> None:
    """In a thread of its own: what was sent is noted even if nobody waits for it any more."""
    store.upload(folder / name, f"{prefix}/{name}", stopping)
    store.write(sent_key(prefix, name), digest.encode())


async def _was_sent(store: Store, prefix: str, name: str, digest: str) -> bool:
    try:
        return await asyncio.to_thread(store.read, sent_key(prefix, name)) == digest.encode()
    except FileNotFoundError:
        return False

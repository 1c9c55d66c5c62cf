"""Weights become a snapshot only when every byte is in the store and accounted for by its manifest.

A staged folder is sent to a prefix of its own that no other attempt ever uses, its manifest last. Somebody's checkpoint is
validated and digested where it lies; nothing of it is copied, and nothing of it is ours to delete.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from prefect import task

from infra.concurrency import gather_all
from infra.errors import ExportFailed, SnapshotError, StoreDenied, StoreError
from infra.model import EvalPoint, SnapshotRef, SnapshotSource
from infra.snapshot import describe, new_prefix, validate, write_manifest
from infra.store import Store
from tasks.retrying import RETRIED

logger = logging.getLogger(__name__)
TIMEOUT_S = 1800
PARALLEL_UPLOADS = 4


@task(name="export", task_run_name="export step {point.step}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def export(point: EvalPoint, source: SnapshotSource, store_url: str) -> SnapshotRef:
    """Raises SnapshotError for a folder that is no complete checkpoint, ExportFailed if the store does not take it."""
    folder = await asyncio.to_thread(Path(source.path).absolute)
    files = await asyncio.to_thread(validate, folder)
    manifest = await asyncio.to_thread(describe, folder, files, point)
    if not source.staged:
        return SnapshotRef(point=point, location=folder.as_uri(), manifest=manifest, owned=False)
    store = Store(store_url)
    prefix = new_prefix(point)
    try:
        await _send(store, folder, files, prefix)
        await asyncio.to_thread(write_manifest, store, prefix, manifest)
    except (StoreDenied, SnapshotError):
        raise
    except StoreError as error:
        raise ExportFailed(f"snapshot of {point.name} did not reach {store.url_of(prefix)}: {error}") from error
    logger.info("exported %s: %d bytes to %s", point.name, manifest.n_bytes, store.url_of(prefix))
    return SnapshotRef(point=point, location=store.url_of(prefix), manifest=manifest, owned=True)


async def _send(store: Store, folder: Path, files: list[str], prefix: str) -> None:
    slots = asyncio.Semaphore(PARALLEL_UPLOADS)

    async def send(name: str) -> None:
        async with slots:
            await asyncio.to_thread(store.upload, folder / name, f"{prefix}/{name}")

    await gather_all(send(name) for name in files)

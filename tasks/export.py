"""Weights become a snapshot only when every byte is in the store and accounted for by its manifest.

A staged folder is sent to the prefix that its flow owns; a retry goes on where the last try stopped. Somebody's checkpoint is
validated and digested where it lies; nothing of it is copied, and nothing of it is ours to delete.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from prefect import task

from infra.errors import ExportFailed, StoreDenied, StoreError
from infra.export import describe_folder, send
from infra.model import EvalPoint, SnapshotRef, SnapshotSource
from infra.store import Store
from tasks.retrying import RETRIED

logger = logging.getLogger(__name__)
TIMEOUT_S = 1800


@task(name="export", task_run_name="export step {point.step}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def export(point: EvalPoint, source: SnapshotSource, store_url: str, prefix: str) -> SnapshotRef:
    """Raises SnapshotError for a folder that is no complete checkpoint, ExportFailed if the store does not take it."""
    folder = await asyncio.to_thread(Path(source.path).absolute)
    manifest = await describe_folder(folder, point)
    if not source.staged:
        return SnapshotRef(point=point, location=folder.as_uri(), manifest=manifest, owned=False)
    store = Store(store_url)
    try:
        sent = await send(store, folder, manifest, prefix)
    except StoreDenied:
        raise
    except StoreError as error:
        raise ExportFailed(f"snapshot of {point.name} did not reach {store.url_of(prefix)}: {error}") from error
    logger.info("exported %s: %d of %d bytes sent to %s", point.name, sent, manifest.n_bytes, store.url_of(prefix))
    return SnapshotRef(point=point, location=store.url_of(prefix), manifest=manifest, owned=True)

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
from infra.model import EvalRequest, SnapshotRef
from infra.store import Store
from infra.validation.examination import validate_checkpoint
from infra.validation.readers import LocalFolder
from tasks.retrying import RETRIED

logger = logging.getLogger(__name__)
TIMEOUT_S = 1800


@task(name="export", task_run_name="export step {request.point.step}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def export(request: EvalRequest, prefix: str) -> SnapshotRef:
    """Raises SnapshotError for a folder that is no complete checkpoint, ExportFailed if the store does not take it."""
    point, source, store_url = request.point, request.source, request.store_url
    folder = await asyncio.to_thread(Path(source.path).absolute)
    needs_chat_template = any(dataset.apply_chat_template for dataset in request.suite.datasets)
    checking = asyncio.create_task(_validate(folder, needs_chat_template))
    try:
        manifest = await describe_folder(folder, point)
        await checking
    finally:
        checking.cancel()
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


async def _validate(folder: Path, needs_chat_template: bool) -> None:
    """Against what its config promises, before any engine is touched: see docs/checkpoints.md."""
    await asyncio.to_thread(validate_checkpoint, LocalFolder(folder), needs_chat_template=needs_chat_template)

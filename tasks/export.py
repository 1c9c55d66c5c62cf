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
from infra.export import complete, send
from infra.model import EvalRequest, SnapshotRef
from infra.snapshot import assemble, describe
from infra.store import Store
from infra.validation.examination import validate_checkpoint
from infra.validation.readers import LocalFolder
from tasks.retrying import RETRIED

logger = logging.getLogger(__name__)


@task(name="export", task_run_name="export step {request.point.step}", **RETRIED)
async def export(request: EvalRequest, prefix: str) -> SnapshotRef:
    """Has no time of its own: it goes on while bytes move, within the point's deadline.

    Raises SnapshotError for a folder that is no complete checkpoint, ExportFailed if the store does not take it.
    """
    folder = await asyncio.to_thread(Path(request.source.path).absolute)
    files = await asyncio.to_thread(_validate, folder, request)
    if not request.source.staged:
        manifest = await asyncio.to_thread(describe, folder, files, request.point)
        return SnapshotRef(point=request.point, location=folder.as_uri(), manifest=manifest, owned=False)
    try:
        return await _send(request, folder, files, prefix)
    except StoreDenied:
        raise
    except StoreError as error:
        raise ExportFailed(f"snapshot of {request.point.name} did not reach {request.store_url}/{prefix}: {error}") from error


def _validate(folder: Path, request: EvalRequest) -> list[str]:
    """Against what its config promises, before a byte is sent or any engine is touched: see docs/checkpoints.md."""
    needs_chat_template = any(dataset.apply_chat_template for dataset in request.suite.datasets)
    return validate_checkpoint(LocalFolder(folder), needs_chat_template=needs_chat_template)


async def _send(request: EvalRequest, folder: Path, files: list[str], prefix: str) -> SnapshotRef:
    store, point = Store(request.store_url), request.point
    sent = await send(store, folder, files, prefix)
    manifest = assemble(sent.files, sent.tensors, point)
    await complete(store, prefix, manifest)
    logger.info("exported %s: %d of %d bytes sent to %s", point.name, sent.n_bytes, manifest.n_bytes, store.url_of(prefix))
    return SnapshotRef(point=point, location=store.url_of(prefix), manifest=manifest, owned=True)

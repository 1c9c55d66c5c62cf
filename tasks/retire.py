"""What a point owned is gone when its flow ends: snapshot and staged folder, on every outcome; nobody's checkpoint ever.

The manifest goes first, so that a deletion that is interrupted never leaves something that looks complete.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

from prefect import task

from infra.model import EvalPoint, SnapshotSource
from infra.snapshot import delete_snapshots
from infra.store import Store
from tasks.retrying import UNCACHED

logger = logging.getLogger(__name__)
TIMEOUT_S = 120


@task(name="retire", task_run_name="retire step {point.step}", timeout_seconds=TIMEOUT_S, **UNCACHED)
async def retire(point: EvalPoint, source: SnapshotSource, store_url: str) -> int:
    """Deletes every attempt to export this point, finished or not, and its staged folder; gives the bytes freed."""
    if not source.staged:
        return 0
    freed = await asyncio.to_thread(delete_snapshots, Store(store_url), point)
    await asyncio.to_thread(shutil.rmtree, Path(source.path), True)
    logger.info("retired %s: %d bytes freed", point.name, freed)
    return freed

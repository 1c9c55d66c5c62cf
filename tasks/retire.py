"""What a point owns is leased while its flow runs and gone when it ends, on every outcome; nobody's checkpoint ever is.

A flow that is killed can't retire. Its lease then expires, and `reclaim_orphans` deletes what it left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from prefect import task

from infra.errors import PinpointError
from infra.leases import acquire, delete_owned, kept_alive, owner_of
from infra.model import EvalPoint, SnapshotSource
from infra.snapshot import new_prefix
from infra.staging import free_staged
from infra.store import Store
from tasks.retrying import UNCACHED

logger = logging.getLogger(__name__)
TIMEOUT_S = 120


@asynccontextmanager
async def owning(point: EvalPoint, source: SnapshotSource, store_url: str) -> AsyncIterator[str]:
    """The prefix for this point's snapshot, leased before its first byte and retired at the end; "" for a foreign one."""
    if not source.staged:
        yield ""
        return
    prefix = new_prefix(point)
    try:
        store = Store(store_url)
        holder = await asyncio.to_thread(acquire, store, prefix, owner=owner_of(point), purpose="export")
        with kept_alive(store, prefix, holder):
            yield prefix
    finally:
        with anyio.move_on_after(TIMEOUT_S, shield=True) as limit:
            await _retire(point, source, store_url)
        if limit.cancelled_caught:
            logger.error("%s was not retired within %d s: the next sweep will", point.name, TIMEOUT_S)


async def _retire(point: EvalPoint, source: SnapshotSource, store_url: str) -> None:
    """What can't be deleted now never changes what became of the point: its lease expires, and a sweep deletes it."""
    try:
        await retire(point, source, store_url)
    except (PinpointError, TimeoutError) as error:
        logger.error("%s was not retired, the next sweep will: %s", point.name, error)


@task(name="retire", task_run_name="retire step {point.step}", timeout_seconds=TIMEOUT_S, **UNCACHED)
async def retire(point: EvalPoint, source: SnapshotSource, store_url: str) -> int:
    """Deletes every attempt to export this point, finished or not, and its staged folder; gives the bytes freed."""
    await asyncio.to_thread(free_staged, Path(source.path))
    freed = await asyncio.to_thread(delete_owned, Store(store_url), point)
    logger.info("retired %s: %d bytes freed", point.name, freed)
    return freed

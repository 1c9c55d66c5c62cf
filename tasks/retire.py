"""What a point owns is leased while its flow runs and retired when it ends, on every outcome; nobody's checkpoint ever is.

A flow that is killed can't retire. Its lease then expires, and `reclaim_orphans` deletes what it left. Who reads a snapshot
that somebody else made, a kept one for one, holds it as long as that takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from prefect import task
from prefect.runtime import flow_run

from infra.concurrency import gather_all
from infra.errors import PinpointError, ServiceUnreachable, StoreError
from infra.fleet.nodes import on_host, places
from infra.handover import take
from infra.leases import Holder, acquire, kept_alive, owner_of, release
from infra.model import EvalPoint, EvalRequest, SnapshotSource, StagedPart
from infra.retention import retire_snapshots
from infra.snapshot import SNAPSHOTS, new_prefix
from infra.staging import free_staged
from infra.store import Store
from tasks.retrying import UNCACHED

logger = logging.getLogger(__name__)
TIMEOUT_S = 120


@asynccontextmanager
async def owning(request: EvalRequest) -> AsyncIterator[str]:
    """The prefix for this point's snapshot, leased before its first byte and retired at the end; "" for a foreign one.

    It is a new one, or that of a killed start of the same flow run, with what that had sent.
    """
    if not request.source.staged:
        async with reading(request, request.source.path):
            yield ""
        return
    store = Store(request.store_url)
    try:
        prefix, holder = await asyncio.to_thread(_begun, store, request.point, flow_run.id or "")
        with kept_alive(store, prefix, holder):
            yield prefix
    finally:
        with anyio.move_on_after(TIMEOUT_S, shield=True) as limit:
            await _retire(request)
        if limit.cancelled_caught:
            logger.error("%s was not retired within %d s: the next sweep will", request.point.name, TIMEOUT_S)


def _begun(store: Store, point: EvalPoint, by: str) -> tuple[str, Holder]:
    taken = take(store, point, by) if by else None
    if taken is not None:
        logger.info("export of %s goes on at %s", point.name, store.url_of(taken[0]))
        return taken
    prefix = new_prefix(point)
    return prefix, acquire(store, prefix, owner=owner_of(point), purpose="export", by=by)


@asynccontextmanager
async def reading(request: EvalRequest, location: str) -> AsyncIterator[None]:
    """A snapshot of the point's store is not deleted while the body reads it; any other checkpoint is not ours to hold.

    Raises SnapshotMissing if it is being deleted already.
    """
    store = Store(request.store_url)
    prefix = store.key_of(location)
    if prefix is None or not prefix.startswith(f"{SNAPSHOTS}/"):
        yield
        return
    holder = await asyncio.to_thread(acquire, store, prefix, owner=owner_of(request.point), purpose="read")
    try:
        with kept_alive(store, prefix, holder):
            yield
    finally:
        with anyio.move_on_after(TIMEOUT_S, shield=True):
            await _release(store, prefix, holder)


async def _release(store: Store, prefix: str, holder: Holder) -> None:
    try:
        await asyncio.to_thread(release, store, prefix, holder)
    except StoreError as error:
        logger.warning("the hold on %s ends in %.0f s: %s", prefix, holder.ttl_s, error)


async def _retire(request: EvalRequest) -> None:
    """What can't be deleted now never changes what became of the point: its lease expires, and a sweep deletes it."""
    try:
        await retire(request.point, request.source, request.store_url, request.keep_snapshots)
    except (PinpointError, TimeoutError) as error:
        logger.error("%s was not retired, the next sweep will: %s", request.point.name, error)


@task(name="retire", task_run_name="retire step {point.step}", timeout_seconds=TIMEOUT_S, **UNCACHED)
async def retire(point: EvalPoint, source: SnapshotSource, store_url: str, keep: int) -> int:
    """Ends every attempt to export this point, finished or not, and its staged folder; gives the bytes freed.

    Of the run's snapshots the newest `keep` whole ones stay.
    """
    await free_parts(source)  # first: memory is freed even if the store is down
    freed = await asyncio.to_thread(retire_snapshots, Store(store_url), point, keep)
    logger.info("retired %s: %d bytes freed", point.name, freed)
    return freed


async def free_parts(source: SnapshotSource) -> None:
    """A staged model, on every host that has some of it; a host that can't be reached has a sweep of its own."""
    await gather_all(_free(part) for part in places(source))


async def _free(part: StagedPart) -> None:
    try:
        await on_host(part.host, free_staged, Path(part.path))
    except ServiceUnreachable as error:
        logger.error("%s is not freed yet, the next sweep of its host will: %s", part.path, error)

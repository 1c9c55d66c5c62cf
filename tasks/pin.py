"""Nothing is generated before every engine has proved which weights it serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from prefect import task

from infra import pinning
from infra.fleet.lease import confirm, reproduce_on_node, revive
from infra.model import EngineProof, EngineRef, FleetLease, PinnedFleet, SnapshotRef
from infra.roster import Roster
from infra.roster import attended as watched
from infra.store import Store
from tasks.retrying import RETRIED

TIMEOUT_S = 3600


@task(name="pin", task_run_name="pin step {snapshot.point.step}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def pin(lease: FleetLease, snapshot: SnapshotRef, store_url: str) -> PinnedFleet:
    """Raises PinViolation naming the engine that serves something else, EngineError for one that does not load."""
    elsewhere, another = partial(reproduce_on_node, lease), partial(_another, lease, snapshot)
    await confirm(lease)  # a flow that was held up must not touch engines that others have by now
    return await pinning.pin(lease, snapshot, Store(store_url), elsewhere, another)


@asynccontextmanager
async def attended(pinned: PinnedFleet, store_url: str) -> AsyncIterator[Roster]:
    """The pinned engines, watched: one that is lost meanwhile is replaced and pinned again before it is asked anything."""
    lease = pinned.lease
    elsewhere, another = partial(reproduce_on_node, lease), partial(_another, lease, pinned.snapshot)

    async def rejoin(engine: EngineRef) -> tuple[EngineRef, EngineProof]:
        return await pinning.rejoin(pinned, engine, another, Store(store_url), elsewhere)

    async with watched(pinned, rejoin, lease.hang_timeout_s) as roster:
        yield roster


async def _another(lease: FleetLease, snapshot: SnapshotRef, engine: EngineRef) -> EngineRef:
    revived = await revive(lease, engine, snapshot)
    await confirm(lease)
    return revived

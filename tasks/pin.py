"""Nothing is generated before every engine has proved which weights it serves."""

from __future__ import annotations

from functools import partial

from prefect import task

from infra import pinning
from infra.fleet.lease import reproduce_on_node
from infra.model import FleetLease, PinnedFleet, SnapshotRef
from infra.store import Store
from tasks.retrying import RETRIED

TIMEOUT_S = 3600


@task(name="pin", task_run_name="pin step {snapshot.point.step}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def pin(lease: FleetLease, snapshot: SnapshotRef, store_url: str) -> PinnedFleet:
    """Raises PinViolation naming the engine that serves something else, EngineError for one that does not load."""
    return await pinning.pin(lease, snapshot, Store(store_url), partial(reproduce_on_node, lease))

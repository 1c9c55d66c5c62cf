"""A flow has a fleet only while it holds the lease."""

from __future__ import annotations

from prefect import task

from infra.fleet.lease import acquire
from infra.model import FleetLease, FleetSpec, SnapshotRef
from tasks.retrying import RETRIED

TIMEOUT_S = 3600


@task(name="acquire_fleet", task_run_name="acquire fleet {spec.name}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def acquire_fleet(spec: FleetSpec, snapshot: SnapshotRef, holder: str, priority: int) -> FleetLease:
    """Waits for the fleet's turn; `holder` names this flow to others that wait. Raises NoCapacity, FleetUnhealthy."""
    return await acquire(spec, snapshot, holder, priority)

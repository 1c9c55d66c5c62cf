"""A flow has a fleet only while it holds the lease; how long it waits is the fleet's to say, within the point's deadline."""

from __future__ import annotations

from prefect import task

from infra.fleet.lease import acquire
from infra.model import FleetLease, FleetSpec, SnapshotRef
from tasks.retrying import RETRIED

TIMEOUT_S = 24 * 3600  # none of its own: the fleet's settings have the times, and may be hours


@task(name="acquire_fleet", task_run_name="acquire fleet {spec.name}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def acquire_fleet(spec: FleetSpec, snapshot: SnapshotRef, holder: str, priority: int) -> FleetLease:
    """Waits for the fleet's turn; `holder` names this flow to others that wait. Raises NoCapacity, FleetUnhealthy."""
    return await acquire(spec, snapshot, holder, priority)

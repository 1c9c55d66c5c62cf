"""The schedules and parameters that people gave a deployment survive each start of the runner, which registers it anew.

Prefect's own registration replaces them: a schedule that somebody has resumed would be gone after the next restart.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.exceptions import ObjectNotFound
from prefect.schedules import Cron, Interval, Schedule

# Paused, because they act on a user's data; prefect.yaml has the same.
PAUSED: tuple[Schedule, ...] = (
    Cron("0 3 * * *", timezone="UTC", slug="nightly", active=False),
    Interval(timedelta(minutes=15), slug="every-quarter-of-an-hour", active=False),
)


async def kept(deployment: str, first: tuple[Schedule, ...]) -> dict[str, Any]:
    """What `to_deployment` is given for FLOW/DEPLOYMENT: as it is registered, or `first` if it never was."""
    async with get_client() as client:
        try:
            known = await client.read_deployment_by_name(deployment)
        except ObjectNotFound:
            return {"schedules": list(first)}
    schedules = [
        DeploymentScheduleCreate(schedule=one.schedule, active=one.active, parameters=one.parameters, slug=one.slug)
        for one in known.schedules
    ]
    return {"schedules": schedules, "parameters": known.parameters, "paused": known.paused}

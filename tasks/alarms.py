"""A point that is worth a notification is tagged so, and Prefect told by an event that automations are triggered by.

The event has the tag too: Prefect gives the events of a flow run the tags that it began with, not those it got meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from infra.alarms import Alarm, alarm_of
from infra.model import EvalPoint, EvalReport, PointRequest, SkippedPoint
from infra.records import now
from infra.store import Store
from tasks.showing import shown
from tasks.tagging import tag_run

logger = logging.getLogger(__name__)
EVENT = "pinpoint.alarm"


async def raise_alarm(request: PointRequest, record: EvalReport | SkippedPoint) -> None:
    """A Prefect or a store that gives no answer, or a flow run that was deleted, costs the notification, never the point."""
    await shown(f"the alarm of {record.point.name}", _raise(request, record))


async def _raise(request: PointRequest, record: EvalReport | SkippedPoint) -> None:
    alarm = await asyncio.to_thread(lambda: alarm_of(Store(request.store_url), record))
    if alarm is not None:
        logger.warning("%s: %s", record.point.name, alarm.message)
        await tag_run(alarm.tag)
        await _tell(record.point, alarm)


async def _tell(point: EvalPoint, alarm: Alarm) -> None:
    """By the REST API: what `emit_event` is given is sent some time later, or lost."""
    event: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "occurred": now(),
        "event": EVENT,
        "resource": {"prefect.resource.id": f"pinpoint.run.{point.run}", "prefect.resource.name": point.run},
        "related": [
            {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.role": "flow-run"},
            {"prefect.resource.id": f"prefect.tag.{alarm.tag}", "prefect.resource.role": "tag"},
        ],
        "payload": {"message": alarm.message, "step": point.step, "attempt": point.attempt},
    }
    async with get_client() as client:
        await client.request("POST", "/events", json=[event])

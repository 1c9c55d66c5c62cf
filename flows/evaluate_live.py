"""Evaluates the live model on the trainer's own engines, while the trainer waits and its producer is paused.

The number is of one version as the engines label it: read before, carried by every response, read after. If it moved, the
point is a `pin_violation`. Nothing is loaded, exported, leased or deleted.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import FlowRun, State

from flows.outcome import Phases, ended_before, leave_record, recorded, timed
from infra.model import EvalReport, LiveRequest, SkippedPoint
from infra.roster import attended
from tasks.attach import attach, confirm
from tasks.report import report
from tasks.run_datasets import run_datasets

HANG_TIMEOUT_S = 60.0


def record_crash(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """For a flow that was killed: Prefect's runner calls this in a process of its own."""
    request = LiveRequest.model_validate(flow_run.parameters["request"])
    leave_record(request, f"the flow run ended as {state.name}: {state.message or 'no message'}")


@flow(
    name="evaluate_live",
    flow_run_name="{request.point.name}",
    persist_result=False,
    on_crashed=[record_crash],
    on_cancellation=[record_crash],
)
async def evaluate_live(request: LiveRequest) -> EvalReport | State[Any]:
    """Measure the live model on the trainer's own engines, whose producer waits at a gate."""
    waits_s = request.deadline_s if request.expires_at is None else request.expires_at - time.time()
    return await recorded(request, max(0.0, min(waits_s, request.deadline_s)), partial(_measure, request))


async def _measure(request: LiveRequest, phases: Phases) -> EvalReport | SkippedPoint:
    if (already := await ended_before(request)) is not None:
        return already  # its producer goes on: its engines are not asked
    with timed(phases, "attach"):
        fleet = await attach(request)
    with timed(phases, "run datasets"):
        async with attended(fleet, None, HANG_TIMEOUT_S) as roster:  # they are the trainer's: a lost one stays lost
            results = await run_datasets(fleet, request.suite, request.store_url, roster)
    with timed(phases, "confirm"):
        await confirm(fleet)
    return await report(request, fleet, results, phases)

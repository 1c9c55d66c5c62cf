"""Evaluates one snapshot: the number it prints is of these weights and no others, or the point is skipped with a reason.

An outage becomes a `Skipped` run; a bug of ours fails the run. What was exported for the point is deleted on every outcome.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run
from prefect.states import Completed

from flows.beginning_again import begins_again
from flows.outcome import Phases, ended_before, leave_record, recorded, timed
from infra.fleet.lease import confirm, held
from infra.model import DatasetResult, Delivered, EvalReport, EvalRequest, PinnedFleet, SkippedPoint, SnapshotRef
from infra.retention import retire_snapshots
from infra.store import Store
from tasks.black_box import evaluate_checkpoint
from tasks.export import export
from tasks.fleet import acquire_fleet
from tasks.ledger import NotOurs, executing, is_ours_to_settle, still_there
from tasks.pin import attended, pin
from tasks.report import report
from tasks.retire import free_parts, owning, reading
from tasks.run_datasets import run_datasets


def clean_up_after_crash(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """For a flow that was killed, whose `finally` did not run: Prefect's runner calls this in a process of its own."""
    request = EvalRequest.model_validate(flow_run.parameters["request"])
    if begins_again(request, flow_run, state) or not is_ours_to_settle(request, str(flow_run.id)):
        return
    leave_record(request, f"the flow run ended as {state.name}: {state.message or 'no message'}")
    if request.source.staged:
        asyncio.run(free_parts(request.source))
        retire_snapshots(Store(request.store_url), request.point, request.keep_snapshots)


@flow(
    name="evaluate_snapshot",
    flow_run_name="{request.point.name}",
    persist_result=False,
    on_crashed=[clean_up_after_crash],
    on_cancellation=[clean_up_after_crash],
)
async def evaluate_snapshot(request: EvalRequest) -> EvalReport | State[Any]:
    """Measure one snapshot of a run on leased engines that have proved which weights they serve."""
    try:
        async with executing(request):
            return await recorded(request, request.deadline_s, partial(_measure, request))
    except NotOurs as elsewhere:
        return Completed(name="Superseded", message=str(elsewhere))


async def _measure(request: EvalRequest, phases: Phases) -> EvalReport | SkippedPoint:
    if (already := await ended_before(request)) is not None:
        if request.source.staged:
            await free_parts(request.source)
        return already
    async with still_there(request), owning(request) as prefix:
        with timed(phases, "export"):
            snapshot = await export(request, prefix)
        async with reading(request, snapshot.location):
            if request.black_box is not None:
                with timed(phases, "black box"):
                    metrics = await evaluate_checkpoint(request, request.black_box, snapshot)
                return await report(request, Delivered(snapshot=snapshot), [], phases, metrics)
            pinned, results = await _evaluate(request, snapshot, phases)
        return await report(request, pinned, results, phases)


async def _evaluate(request: EvalRequest, snapshot: SnapshotRef, phases: Phases) -> tuple[PinnedFleet, list[DatasetResult]]:
    holder = f"{request.point.name} (flow run {flow_run.id})"
    with timed(phases, "acquire fleet"):
        lease = await acquire_fleet(request.fleet, snapshot, holder, request.priority)
    async with held(lease):
        with timed(phases, "pin"):
            pinned = await pin(lease, snapshot, request.store_url)
        with timed(phases, "run datasets"):
            async with attended(pinned, request.store_url) as roster:
                results = await run_datasets(pinned, request.suite, request.store_url, roster)
        await confirm(lease)
    return replace(pinned, proofs=(*pinned.proofs, *roster.proofs)), results

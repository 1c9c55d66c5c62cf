"""Evaluates one snapshot: the number it prints is of these weights and no others, or the point is skipped with a reason.

An outage becomes a `Skipped` run; a bug of ours fails the run. What was exported for the point is deleted on every outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.runtime import flow_run
from prefect.states import Completed

from infra.concurrency import gather_all
from infra.errors import StoreError
from infra.fleet.lease import confirm, held
from infra.model import DatasetResult, EvalReport, EvalRequest, PinnedFleet, SkippedPoint, SkipReason, SnapshotRef
from infra.records import commit, now
from infra.retention import retire_snapshots
from infra.staging import free_staged
from infra.store import Store
from tasks.export import export
from tasks.fleet import acquire_fleet
from tasks.pin import pin
from tasks.report import report
from tasks.retire import owning, reading
from tasks.run_dataset import run_dataset
from tasks.skip import as_skip, skip

logger = logging.getLogger(__name__)
for _package in ("flows", "tasks", "infra"):  # what they log goes to the UI too (PREFECT_LOGGING_EXTRA_LOGGERS)
    logging.getLogger(_package).setLevel(logging.INFO)


def clean_up_after_crash(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """For a flow that was killed, whose `finally` did not run: Prefect's runner calls this in a process of its own."""
    request = EvalRequest.model_validate(flow_run.parameters["request"])
    _leave_record(request, f"the flow run ended as {state.name}: {state.message or 'no message'}")
    if request.source.staged:
        free_staged(Path(request.source.path))
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
    phases: dict[str, float] = {}
    try:
        async with asyncio.timeout(request.deadline_s):
            record = await _measure(request, phases)
    except BaseException as error:
        reason = as_skip(error)
        if reason is None:  # a bug of ours, or the end of this process: it fails, but not without a record
            ended = isinstance(error, asyncio.CancelledError)
            _leave_record(request, "the flow run was cancelled" if ended else f"{type(error).__name__}: {error}")
            raise
        message = reason.message or f"no report within {request.deadline_s:g} s; seconds taken: {phases}"
        logger.warning("%s skipped: %s: %s", request.point.name, reason.reason, message)
        record = await skip(request, _skipped(request, reason.reason, message))
    if isinstance(record, SkippedPoint):
        return Completed(name="Skipped", message=f"{record.reason}: {record.message}")
    return record


async def _measure(request: EvalRequest, phases: dict[str, float]) -> EvalReport | SkippedPoint:
    async with owning(request) as prefix:
        with timed(phases, "export"):
            snapshot = await export(request, prefix)
        async with reading(request, snapshot.location):
            pinned, results = await _evaluate(request, snapshot, phases)
        return await report(request, pinned, results, phases)


async def _evaluate(
    request: EvalRequest, snapshot: SnapshotRef, phases: dict[str, float]
) -> tuple[PinnedFleet, list[DatasetResult]]:
    with timed(phases, "acquire fleet"):
        lease = await acquire_fleet(request.fleet, snapshot, f"{request.point.name} (flow run {flow_run.id})")
    async with held(lease):
        with timed(phases, "pin"):
            pinned = await pin(lease, snapshot, request.store_url)
        with timed(phases, "run datasets"):
            results = await gather_all(
                run_dataset(pinned, dataset, request.suite.name, request.store_url) for dataset in request.suite.datasets
            )
        await confirm(lease)
    return pinned, results


def _leave_record(request: EvalRequest, message: str) -> None:
    """A point that failed is on the curve too, unless its record is there already."""
    try:
        commit(Store(request.store_url), _skipped(request, SkipReason.CRASHED.value, message))
    except StoreError as error:  # the trainer's thread, or `pinpoint evaluate`, writes it when the store is back
        logger.error("%s has no record yet: %s", request.point.name, error)


def _skipped(request: EvalRequest, reason: str, message: str) -> SkippedPoint:
    return SkippedPoint(
        point=request.point,
        suite=request.suite.name,
        reason=reason,
        message=message,
        export_time_seconds=request.export_time_seconds,
        finished_at=now(),
    )


@contextmanager
def timed(phases: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds that the body took to `phases`."""
    started = time.monotonic()
    try:
        yield
    finally:
        phases[name] = time.monotonic() - started

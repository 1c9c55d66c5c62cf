"""Whatever becomes of a point, it has one record: a report, or a skip with its reason.

An outage becomes a `Skipped` run; a bug of ours fails the run, and is recorded too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed

from infra.errors import StoreError
from infra.model import EvalReport, PointRequest, SkippedPoint, SkipReason
from infra.records import commit, find, now
from infra.running.sample_log import forget_logs
from infra.store import Store
from tasks.alarms import raise_alarm
from tasks.skip import as_skip, skip, tag_skipped

logger = logging.getLogger(__name__)
for _package in ("flows", "tasks", "infra"):  # what they log goes to the UI too (PREFECT_LOGGING_EXTRA_LOGGERS)
    logging.getLogger(_package).setLevel(logging.INFO)
Phases = dict[str, float]
Measure = Callable[[Phases], Awaitable[EvalReport | SkippedPoint]]


async def recorded(request: PointRequest, within_s: float, measure: Measure) -> EvalReport | State[Any]:
    """What the flow returns: the report that `measure` made within `within_s`, or a state that tells the skip."""
    phases: Phases = {}
    try:
        async with asyncio.timeout(within_s):
            record = await measure(phases)
    except BaseException as error:
        reason = as_skip(error)
        if reason is None:  # a bug of ours, or the end of this process: it fails, but not without a record
            ended = isinstance(error, asyncio.CancelledError)
            leave_record(request, "the flow run was cancelled" if ended else f"{type(error).__name__}: {error}")
            raise
        message = reason.message or f"no report within {within_s:g} s; seconds taken: {phases}"
        logger.warning("%s skipped: %s: %s", request.point.name, reason.reason, message)
        record = await skip(request, _skipped(request, reason.reason, message))
    await raise_alarm(request, record)
    await asyncio.to_thread(forget_logs, Store(request.store_url), request.point, request.suite.name)
    if isinstance(record, SkippedPoint):
        return Completed(name="Skipped", message=f"{record.reason}: {record.message}")
    return record


async def ended_before(request: PointRequest) -> EvalReport | SkippedPoint | None:
    """The record of a point that is over already, as its trainer has given it up: nothing more is to be measured then."""
    record = await asyncio.to_thread(find, Store(request.store_url), request.point, request.suite.name)
    if isinstance(record, SkippedPoint):
        await tag_skipped(record.reason)
    return record


def leave_record(request: PointRequest, message: str) -> None:
    """A point that failed is on the curve too, unless its record is there already."""
    store = Store(request.store_url)
    try:
        commit(store, _skipped(request, SkipReason.CRASHED.value, message))
        forget_logs(store, request.point, request.suite.name)  # nobody goes on with it
    except StoreError as error:  # the trainer's thread, or `pinpoint evaluate`, writes it when the store is back
        logger.error("%s has no record yet: %s", request.point.name, error)


def _skipped(request: PointRequest, reason: str, message: str) -> SkippedPoint:
    return SkippedPoint(
        point=request.point,
        suite=request.suite.name,
        reason=reason,
        message=message,
        export_time_seconds=request.export_time_seconds,
        finished_at=now(),
    )


@contextmanager
def timed(phases: Phases, name: str) -> Iterator[None]:
    """Adds the seconds that the body took to `phases`."""
    started = time.monotonic()
    try:
        yield
    finally:
        phases[name] = time.monotonic() - started

"""The one table that turns an outage into an attributed skip; whatever is not in it is a bug of ours and fails the run."""

from __future__ import annotations

import asyncio
import logging

from prefect import task

from infra import errors
from infra.errors import EvalSkip, StoreError
from infra.model import EvalReport, PointRequest, SkippedPoint, SkipReason
from infra.records import commit
from infra.sinks import background
from infra.store import Store
from tasks.history import show_history
from tasks.retrying import UNCACHED
from tasks.showing import shown
from tasks.tagging import tag_run

logger = logging.getLogger(__name__)
REASONS: tuple[tuple[type[BaseException], SkipReason], ...] = (
    (errors.SnapshotMissing, SkipReason.CKPT_MISSING),
    (errors.SnapshotInvalid, SkipReason.CKPT_INVALID),
    (errors.ExportFailed, SkipReason.EXPORT_FAILED),
    (errors.StoreError, SkipReason.EXPORT_FAILED),
    (errors.PinViolation, SkipReason.PIN_VIOLATION),
    (errors.NoCapacity, SkipReason.NO_CAPACITY),
    (errors.LeaseLost, SkipReason.UNHEALTHY),
    (errors.FleetUnhealthy, SkipReason.UNHEALTHY),
    (errors.EngineError, SkipReason.UNHEALTHY),
    (errors.ServiceUnreachable, SkipReason.UNHEALTHY),
    (errors.BlackBoxFailed, SkipReason.CRASHED),
    (TimeoutError, SkipReason.TIMEOUT),
)


def as_skip(error: BaseException) -> EvalSkip | None:
    """The skip that `error` means, or None if it means none. A user's own `EvalSkip` keeps its reason."""
    if isinstance(error, EvalSkip):
        return error
    for kind, reason in REASONS:
        if isinstance(error, kind):
            return EvalSkip(reason.value, str(error))
    return None


@task(name="skip", task_run_name="skip step {skipped.point.step}: {skipped.reason}", timeout_seconds=120, **UNCACHED)
async def skip(request: PointRequest, skipped: SkippedPoint) -> EvalReport | SkippedPoint:
    """Leaves the skip where people look: in the store, as a tag of the flow run, in the run's history.

    Gives the record that counts: that of a point that has one already stays. A store that is down is no reason to hide the
    skip from the UI; who triggered the point writes its record later.
    """
    record: EvalReport | SkippedPoint = skipped
    store, run = Store(request.store_url), skipped.point.run
    try:
        record = await asyncio.to_thread(commit, store, skipped)
        await asyncio.to_thread(background.start, request.store_url, run)
        await show_history(store, run, skipped.suite)
    except StoreError as error:
        logger.error("%s: its skip is not in the store yet: %s", skipped.point.name, error)
    if isinstance(record, SkippedPoint):
        await tag_skipped(record.reason)
    return record


async def tag_skipped(reason: str) -> None:
    """Marks the flow run that is under way, so that a filter for `skipped:REASON` finds it."""
    await shown(f"the tag skipped:{reason}", tag_run(f"skipped:{reason}"))

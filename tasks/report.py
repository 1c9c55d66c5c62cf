"""The report is in the store before anything is shown of it; what the Prefect UI shows can be made again from the store.

What can't be shown, because Prefect does not take it for one, is missing there and nowhere else: the point has its report.
"""

from __future__ import annotations

import asyncio
import logging

from prefect import task
from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact

from infra.comparing import with_comparisons, without_comparisons
from infra.concurrency import gather_all
from infra.datasets import digest_of, suite_digest
from infra.errors import PinpointError
from infra.model import (
    DatasetResult,
    Delivered,
    EvalReport,
    EvalRequest,
    LiveFleet,
    Manifest,
    Pinned,
    PointRequest,
    SkippedPoint,
)
from infra.presentation import Transcript, chosen, report_markdown, score_rows
from infra.records import commit, now, read_progress, samples_at
from infra.saved.elsewhere import note
from infra.sinks import background
from infra.store import Store
from tasks.history import show_history
from tasks.retrying import RETRIED
from tasks.showing import shown
from tasks.skip import tag_skipped

logger = logging.getLogger(__name__)
TIMEOUT_S = 300
COMPARISON_DEADLINE_S = 60.0
TRANSCRIPTS_DEADLINE_S = 20.0


@task(name="report", task_run_name="report step {request.point.step}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def report(
    request: PointRequest,
    pinned: Pinned | Delivered,
    results: list[DatasetResult],
    phases: dict[str, float],
    metrics: dict[str, float] | None = None,
) -> EvalReport | SkippedPoint:
    """Commits the report of a measured point and shows it; gives the record that counts, which is the first one."""
    store = Store(request.store_url)
    point = request.point
    manifest = None if isinstance(pinned, LiveFleet) else pinned.snapshot.manifest
    trainer_step = await asyncio.to_thread(read_progress, store, point.run, point.attempt)
    made = EvalReport(
        point=point,
        suite=request.suite.name,
        suite_digest=await asyncio.to_thread(_digest, request, results),
        snapshot_digest=manifest.snapshot_digest if manifest else None,
        weight_version=pinned.token,
        proofs=pinned.proofs,
        results=tuple(results),
        lag_steps=max(0, (trainer_step if trainer_step is not None else point.step) - point.step),
        export_time_seconds=request.export_time_seconds,
        duration_seconds=sum(phases.values()),
        phases=phases,
        finished_at=now(),
        metrics=metrics or {},
    )
    record = await asyncio.to_thread(commit, store, await _compared(store, made))
    await asyncio.to_thread(background.start, store.url, point.run)
    if isinstance(request, EvalRequest) and isinstance(record, EvalReport):
        await asyncio.to_thread(note, store, request, record)
    if isinstance(record, EvalReport):
        await gather_all((_show(store, record, manifest), show_history(store, point.run, record.suite)))
    else:  # who triggered the point had given it up
        await gather_all((tag_skipped(record.reason), show_history(store, point.run, record.suite)))
    return record


def _digest(request: PointRequest, results: list[DatasetResult]) -> str:
    """Of what was asked, and not of what the data has become since; a black box asks what it likes."""
    return digest_of(result.digest for result in results) if results else suite_digest(request.suite)


async def _show(store: Store, record: EvalReport, manifest: Manifest | None) -> None:
    name = record.point.name
    scores = acreate_table_artifact(score_rows(record), description=f"Scores of {name}")
    await gather_all(
        (shown(f"the scores of {name}", scores), shown(f"the report of {name}", _show_page(store, record, manifest)))
    )


async def _show_page(store: Store, record: EvalReport, manifest: Manifest | None) -> None:
    transcripts, unread = await _transcripts(store, record)
    page = report_markdown(record, manifest, transcripts=transcripts, unread=unread, store_url=store.url)
    await acreate_markdown_artifact(page, description=f"Report of {record.point.name}")


async def _transcripts(store: Store, record: EvalReport) -> tuple[list[Transcript], str]:
    """Three responses, or why there are none."""
    located = [result for result in record.results if result.samples_location]
    samples = {result.dataset: samples_at(store, result.samples_location) for result in located}
    try:
        async with asyncio.timeout(TRANSCRIPTS_DEADLINE_S):
            return await asyncio.to_thread(chosen, samples), ""
    except TimeoutError:
        return [], f"The samples were not read within {TRANSCRIPTS_DEADLINE_S:g} s."
    except (PinpointError, OSError, ValueError) as error:
        return [], f"The samples can't be read: {error}"


async def _compared(store: Store, made: EvalReport) -> EvalReport:
    """A store that is slow to give the samples of earlier points costs the comparison, not the report."""
    try:
        async with asyncio.timeout(COMPARISON_DEADLINE_S):
            return await asyncio.to_thread(with_comparisons, store, made)
    except TimeoutError:
        return without_comparisons(made, f"the samples of earlier points were not read within {COMPARISON_DEADLINE_S:g} s")

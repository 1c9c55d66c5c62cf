"""A dataset streams: problems go in, samples come out, and what a try before this one has finished is not asked again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from infra.concurrency import first_failure, gather_all
from infra.errors import DatasetError, FleetUnhealthy
from infra.grading.pool import GRADE_DEADLINE_S, GraderPool
from infra.model import DatasetSpec, Pinned, Problem, Sample
from infra.prompts import Render
from infra.roster import Roster
from infra.running.asking import Asker
from infra.running.clients import Clients
from infra.running.load import MOST_PER_ENGINE
from infra.running.order import Feed, longest_first
from infra.running.progress import Progress
from infra.running.sample_log import SampleLog
from infra.running.spool import Spool

logger = logging.getLogger(__name__)
GRADED_PER_ENGINE = 64  # answers that may wait for their grade while the engine is asked for more


async def run_samples(
    pinned: Pinned, spec: DatasetSpec, problems: Sequence[Problem], render: Render, roster: Roster | None = None
) -> list[Sample]:
    """All samples of all problems, in order of problem and index, in memory. Raises as `stream_samples`."""
    with Spool(problems, spec.samples_per_prompt) as spool:
        await stream_samples(pinned, spec, problems, render, spool, roster)
        return list(spool)


async def stream_samples(
    pinned: Pinned,
    spec: DatasetSpec,
    problems: Sequence[Problem],
    render: Render,
    spool: Spool,
    roster: Roster | None = None,
    *,
    log: SampleLog | None = None,
    lengths: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> None:
    """Fills `spool`. `roster` says which engines may be asked, `log` what is finished already, `lengths` what takes longest.

    Raises:
        PinViolation: any response that is not of the pinned version alone.
        DatasetError: every request was refused for what it asks, a prompt longer than the model's context for one.
        FleetUnhealthy: no engine answered a single request.
        ConfigError: the grader can't be loaded; nothing has been asked.
    """
    progress = progress or Progress()
    progress.total = len(problems) * spec.samples_per_prompt
    progress.done = progress.resumed = await asyncio.to_thread(_resume, spool, log) if log else 0

    def record(sample: Sample) -> None:
        spool.add(sample)
        progress.done += 1

    async with AsyncExitStack() as stack:
        clients = Clients(stack, pinned.api_key)
        pool = await stack.enter_async_context(GraderPool(deadline_s=GRADE_DEADLINE_S))
        await pool.ready(spec)
        roster = roster or Roster(pinned)
        feed = Feed(longest_first(problems, lengths or {}), spec.samples_per_prompt, len(roster), spool.has)
        asker = Asker(roster, spec, clients, pool, render, feed, record)
        workers = min(MOST_PER_ENGINE + GRADED_PER_ENGINE, progress.total - progress.done)
        progress.started = time.monotonic()
        async with _beside(asker.gates.watch(clients)), _beside(log.follow(spool, spool.file_bytes) if log else None):
            await gather_all(asker.work(lane) for _ in range(workers) for lane in range(len(roster)))
            progress.ended = time.monotonic()
    _refuse_if_nobody_answered(spec, asker, spool)


def _resume(spool: Spool, log: SampleLog) -> int:
    for sample in log.samples():
        if spool.wants(sample):
            spool.add(sample)
    if spool:
        logger.info("%d samples of %s are in the log of an earlier try", len(spool), log.token)
    return len(spool)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """`work` goes on while the body runs, and is cancelled and awaited when that ends, however it does."""
    if work is None:
        yield
        return
    with first_failure():
        async with asyncio.TaskGroup() as group:
            going_on = group.create_task(work)
            try:
                yield
            finally:
                going_on.cancel()


def _refuse_if_nobody_answered(spec: DatasetSpec, asker: Asker, spool: Spool) -> None:
    if asker.failed < len(spool):
        return
    if asker.unanswered is None:
        raise DatasetError(f"all {len(spool)} requests were refused, the first because of {spool[0].detail}", path=spec.name)
    raise FleetUnhealthy(f"dataset {spec.name}: no engine answered: {asker.unanswered}")

"""One dataset, asked of a pinned fleet and nothing else; its samples are in the store before its score exists.

What an earlier try has finished, of this task or of a flow that was killed, is not asked again. Samples stream from the engines
to a file and to the store; responses are not held in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from prefect import task

from infra.datasets import dataset_digest, load_dataset
from infra.errors import DataUnreachable, StoreError
from infra.grading.failed_share import with_score_only_if_graded
from infra.model import DatasetResult, DatasetSpec, Pinned, Sample, SampleOutcome
from infra.prompts import renderer_of
from infra.records import write_samples
from infra.roster import Roster
from infra.running import stream_samples
from infra.running.order import known_lengths, note_lengths
from infra.running.progress import Progress
from infra.running.sample_log import SampleLog
from infra.running.spool import Spool
from infra.statistics import (
    best_at_k,
    count_outcomes,
    coverage_and_bounds,
    ends_in_a_loop,
    estimate,
    lengths,
    pass_at_k,
    prompt_means,
    prompts_too_long,
    score_completed,
    truncated_ratio,
    version_metrics,
)
from infra.store import Store
from tasks.progress import shown
from tasks.retrying import RETRIED

logger = logging.getLogger(__name__)
TIMEOUT_S = 24 * 3600  # the point's own deadline is the one that counts
SHARED = ("problem_id", "weight_versions", "engine")  # equal in many samples


@task(name="run_dataset", task_run_name="run {spec.name}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def run_dataset(
    pinned: Pinned, spec: DatasetSpec, suite: str, store_url: str, roster: Roster | None = None
) -> DatasetResult:
    """`roster` says which of the pinned engines may be asked; by default those that answer.

    Raises PinViolation if any response is of another version, DatasetError for a row that can't be read, DataUnreachable.
    """
    started = time.monotonic()
    store, run = Store(store_url), pinned.point.run
    try:
        loaded = await asyncio.to_thread(load_dataset, spec)
    except StoreError as error:
        raise DataUnreachable(f"{spec.name}: {error}") from error
    render = await asyncio.to_thread(renderer_of, pinned, spec)
    log = await asyncio.to_thread(SampleLog.of, store, pinned, suite, spec, loaded.problems)
    digest = await asyncio.to_thread(dataset_digest, spec, loaded.problems)
    known = await asyncio.to_thread(known_lengths, store, run, suite, spec.name)
    progress = Progress()
    with Spool(loaded.problems, spec.samples_per_prompt) as samples:
        asking = partial(stream_samples, pinned, spec, loaded.problems, render, samples, roster)
        async with shown(progress, spec.name):
            await asking(log=log, lengths=known, progress=progress)
        location = await asyncio.to_thread(write_samples, store, pinned.point, suite, spec.name, samples)
        seconds = time.monotonic() - started
        result = await asyncio.to_thread(summarise, spec, samples, location, seconds, pinned.step_of)
        await asyncio.to_thread(note_lengths, store, run, suite, spec.name, samples)
        too_long = await asyncio.to_thread(prompts_too_long, samples) if result.outcomes.get(SampleOutcome.INFRA_ERROR) else 0
    result = replace(result, bad_rows=len(loaded.bad_rows), too_long=too_long, digest=digest)
    score = f"{result.score.mean:.3f}" if result.score else result.no_score or "none"
    logger.info("%s of %s: score %s, n %d", spec.name, pinned.token, score, result.n_samples)
    return result


def summarise(
    spec: DatasetSpec, streamed: Iterable[Sample], location: str, seconds: float, step_of: Callable[[str], int]
) -> DatasetResult:
    samples, looping = without_texts(streamed)
    coverage, worst, best = coverage_and_bounds(samples)
    step, mixed = version_metrics(samples, step_of)
    result = DatasetResult(
        dataset=spec.name,
        score=estimate(prompt_means(samples)),
        coverage=coverage,
        worst=worst,
        best=best,
        n_prompts=len({sample.problem_id for sample in samples}),
        n_samples=len(samples),
        outcomes=count_outcomes(samples),
        truncated_ratio=truncated_ratio(samples),
        weight_version_mean=step,
        mixed_version_ratio=mixed,
        completion_tokens=sum(sample.completion_tokens for sample in samples),
        duration_seconds=seconds,
        samples_location=location,
        samples_per_prompt=spec.samples_per_prompt,
        score_completed=score_completed(samples),
        pass_at_k=pass_at_k(samples),
        best_at_k=best_at_k(samples),
        lengths=lengths(samples),
        repetition_ratio=looping,
    )
    return with_score_only_if_graded(result, spec.max_failed_share)


def without_texts(streamed: Iterable[Sample]) -> tuple[list[Sample], float | None]:
    """What the other statistics need of samples, and the share that end in a loop, for which alone responses are looked at."""
    samples: list[Sample] = []
    same: dict[str | tuple[str, ...], Any] = {}
    came = looping = 0
    for sample in streamed:
        if sample.outcome is not SampleOutcome.INFRA_ERROR:
            came += 1
            looping += ends_in_a_loop(sample.response)
        shared = {name: same.setdefault(held, held) for name in SHARED for held in [getattr(sample, name)]}
        samples.append(replace(sample, prompt="", response="", answer="", detail="", **shared))
    return samples, looping / came if came else None

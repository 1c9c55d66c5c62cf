"""One dataset, asked of a pinned fleet and nothing else; its samples are in the store before its score exists."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from prefect import task

from infra.datasets import load_problems
from infra.grading.failed_share import with_score_only_if_graded
from infra.model import DatasetResult, DatasetSpec, Pinned, Sample
from infra.prompts import renderer_of
from infra.records import write_samples
from infra.roster import Roster
from infra.running import run_samples
from infra.statistics import (
    best_at_k,
    count_outcomes,
    coverage_and_bounds,
    estimate,
    lengths,
    pass_at_k,
    prompt_means,
    repetition_ratio,
    score_completed,
    truncated_ratio,
    version_metrics,
)
from infra.store import Store
from tasks.retrying import RETRIED

logger = logging.getLogger(__name__)
TIMEOUT_S = 3600


@task(name="run_dataset", task_run_name="run {spec.name}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def run_dataset(
    pinned: Pinned, spec: DatasetSpec, suite: str, store_url: str, roster: Roster | None = None
) -> DatasetResult:
    """`roster` says which of the pinned engines may be asked; by default those that answer.

    Raises PinViolation if any response is of another version, DatasetError for a row that can't be read."""
    started = time.monotonic()
    problems = await asyncio.to_thread(load_problems, spec)
    render = await asyncio.to_thread(renderer_of, pinned) if spec.apply_chat_template else _as_it_is
    samples = await run_samples(pinned, spec, problems, render, roster)
    location = await asyncio.to_thread(write_samples, Store(store_url), pinned.point, suite, spec.name, samples)
    seconds = time.monotonic() - started
    result = await asyncio.to_thread(summarise, spec, samples, location, seconds, pinned.step_of)
    score = f"{result.score.mean:.3f}" if result.score else result.no_score or "none"
    logger.info("%s of %s: score %s, n %d", spec.name, pinned.token, score, result.n_samples)
    return result


def summarise(
    spec: DatasetSpec, samples: list[Sample], location: str, seconds: float, step_of: Callable[[str], int]
) -> DatasetResult:
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
        repetition_ratio=repetition_ratio(samples),
    )
    return with_score_only_if_graded(result, spec.max_failed_share)


def _as_it_is(prompt: str) -> str:
    return prompt

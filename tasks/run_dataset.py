"""One dataset, asked of a pinned fleet and nothing else; its samples are in the store before its score exists."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from prefect import task

from infra.datasets import load_problems
from infra.model import DatasetResult, DatasetSpec, Pinned, Sample, SampleOutcome
from infra.prompts import renderer_of
from infra.records import write_samples
from infra.running import run_samples
from infra.statistics import count_outcomes, coverage_and_bounds, estimate, prompt_means, version_metrics
from infra.store import Store
from tasks.retrying import RETRIED

logger = logging.getLogger(__name__)
TIMEOUT_S = 3600


@task(name="run_dataset", task_run_name="run {spec.name}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def run_dataset(pinned: Pinned, spec: DatasetSpec, suite: str, store_url: str) -> DatasetResult:
    """Raises PinViolation if any response is of another version, DatasetError for a row that can't be read."""
    started = time.monotonic()
    problems = await asyncio.to_thread(load_problems, spec)
    render = await asyncio.to_thread(renderer_of, pinned) if spec.apply_chat_template else _as_it_is
    samples = await run_samples(pinned, spec, problems, render)
    location = await asyncio.to_thread(write_samples, Store(store_url), pinned.point, suite, spec.name, samples)
    result = summarise(spec, samples, location, time.monotonic() - started, pinned.step_of)
    score = f"{result.score.mean:.3f}" if result.score else "none"
    logger.info("%s of %s: score %s, n %d", spec.name, pinned.token, score, result.n_samples)
    return result


def summarise(
    spec: DatasetSpec, samples: list[Sample], location: str, seconds: float, step_of: Callable[[str], int]
) -> DatasetResult:
    coverage, worst, best = coverage_and_bounds(samples)
    step, mixed = version_metrics(samples, step_of)
    truncated = sum(sample.outcome is SampleOutcome.TRUNCATED for sample in samples)
    return DatasetResult(
        dataset=spec.name,
        score=estimate(prompt_means(samples)),
        coverage=coverage,
        worst=worst,
        best=best,
        n_prompts=len({sample.problem_id for sample in samples}),
        n_samples=len(samples),
        outcomes=count_outcomes(samples),
        truncated_ratio=truncated / len(samples),
        weight_version_mean=step,
        mixed_version_ratio=mixed,
        completion_tokens=sum(sample.completion_tokens for sample in samples),
        duration_seconds=seconds,
        samples_location=location,
    )


def _as_it_is(prompt: str) -> str:
    return prompt

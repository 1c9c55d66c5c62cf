"""The datasets of a suite are measured side by side, and one that can't be measured costs only its own score."""

from __future__ import annotations

from infra.concurrency import gather_all
from infra.errors import ConfigError, DataUnreachable, EvalSkip
from infra.model import DatasetResult, DatasetSpec, Pinned, SkipReason, Suite
from infra.roster import Roster
from infra.statistics import count_outcomes
from tasks.run_dataset import run_dataset

AT_FAULT = (ConfigError, DataUnreachable)


async def run_datasets(pinned: Pinned, suite: Suite, store_url: str, roster: Roster | None = None) -> list[DatasetResult]:
    """In their order. One whose data, prompts or grader are at fault, or whose data is away, has no score and says why.

    Raises EvalSkip if that is so of all of them, and what else `run_dataset` raises.
    """
    made = await gather_all(_or_refused(pinned, spec, suite.name, store_url, roster) for spec in suite.datasets)
    if made and all(isinstance(one, AT_FAULT) for one in made):
        raise EvalSkip(SkipReason.SUITE_INVALID.value, str(made[0]))
    return [
        _refused(spec, one, pinned) if isinstance(one, AT_FAULT) else one
        for spec, one in zip(suite.datasets, made, strict=True)
    ]


async def _or_refused(
    pinned: Pinned, spec: DatasetSpec, suite: str, store_url: str, roster: Roster | None
) -> DatasetResult | ConfigError | DataUnreachable:
    try:
        return await run_dataset(pinned, spec, suite, store_url, roster)
    except AT_FAULT as error:
        return error


def _refused(spec: DatasetSpec, error: Exception, pinned: Pinned) -> DatasetResult:
    """Of a dataset that nothing is known of but why."""
    return DatasetResult(
        dataset=spec.name,
        score=None,
        coverage=0.0,
        worst=0.0,
        best=1.0,
        n_prompts=0,
        n_samples=0,
        outcomes=count_outcomes([]),
        truncated_ratio=0.0,
        weight_version_mean=float(pinned.point.step),
        mixed_version_ratio=0.0,
        completion_tokens=0,
        duration_seconds=0.0,
        samples_location="",
        samples_per_prompt=spec.samples_per_prompt,
        no_score=str(error),
    )

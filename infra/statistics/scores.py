"""Could-not-grade is not zero: what has no reward is left out of a score, counted, and bounded."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from infra.model import Estimate, Sample, SampleOutcome
from infra.statistics.intervals import estimate

Key = TypeVar("Key", bound=Hashable)


def problem_id(sample: Sample) -> str:
    return sample.problem_id


def rewards_by_prompt(samples: Iterable[Sample], key: Callable[[Sample], Key]) -> dict[Key, list[float]]:
    """The rewards of each prompt that has at least one graded sample; `key` says which prompt a sample is of."""
    rewards: dict[Key, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.reward is not None:
            rewards[key(sample)].append(sample.reward)
    return rewards


def mean_by_prompt(samples: Iterable[Sample], key: Callable[[Sample], Key]) -> dict[Key, float]:
    return {prompt: math.fsum(given) / len(given) for prompt, given in rewards_by_prompt(samples, key).items()}


def prompt_means(samples: Iterable[Sample]) -> list[float]:
    """Mean reward of each prompt that has at least one graded sample, by prompt id."""
    means = mean_by_prompt(samples, problem_id)
    return [means[id] for id in sorted(means)]


def score_completed(samples: Iterable[Sample]) -> Estimate | None:
    """The score of the responses that ended by themselves; None if none did.

    These are a chosen few: a model that answers only the easy prompts in time scores high here.
    """
    return estimate(prompt_means(sample for sample in samples if sample.outcome is not SampleOutcome.TRUNCATED))


def coverage_and_bounds(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Graded share of all samples; the mean reward if all ungraded ones were wrong; the same if all were right."""
    graded = [sample.reward for sample in samples if sample.reward is not None]
    total = len(samples)
    if total == 0:
        return 0.0, 0.0, 1.0
    missing = total - len(graded)
    earned = math.fsum(graded)
    return len(graded) / total, earned / total, (earned + missing) / total


def truncated_ratio(samples: Sequence[Sample]) -> float:
    """Samples that reached their limit over all samples, also those that nobody could grade."""
    return sum(sample.outcome is SampleOutcome.TRUNCATED or sample.finish == "length" for sample in samples) / len(samples)


def count_outcomes(samples: Sequence[Sample]) -> dict[str, int]:
    """How many samples had each outcome; every outcome is listed, so that a zero is seen to be one."""
    counted = Counter(sample.outcome for sample in samples)
    return {outcome.value: counted[outcome] for outcome in SampleOutcome}


def version_metrics(samples: Sequence[Sample], step_of: Callable[[str], int]) -> tuple[float, float]:
    """Mean step that the engines themselves reported, and the share of responses that span more than one version.

    `step_of` reads a version as its step.
    """
    answered = [sample for sample in samples if sample.weight_versions]
    if not answered:
        return math.nan, 0.0
    steps = [step_of(token) for sample in answered for token in set(sample.weight_versions)]
    mixed = sum(len(set(sample.weight_versions)) > 1 for sample in answered)
    return math.fsum(steps) / len(steps), mixed / len(answered)

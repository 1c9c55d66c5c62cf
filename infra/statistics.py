"""A score never stands alone: it carries its interval, its coverage, and the bounds that what is missing allows.

The unit of sampling is the prompt: samples of one prompt are averaged first, so that the standard error is clustered by
prompt (Miller, "Adding Error Bars to Evals", arXiv:2411.00640, section 2.2).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from infra.model import Estimate, Sample, SampleOutcome

CONFIDENCE = 0.95


def prompt_means(samples: Sequence[Sample]) -> list[float]:
    """Mean reward of each prompt that has at least one graded sample, by prompt id."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.reward is not None:
            rewards[sample.problem_id].append(sample.reward)
    return [math.fsum(rewards[id]) / len(rewards[id]) for id in sorted(rewards)]


def estimate(means: Sequence[float]) -> Estimate | None:
    """Mean of per-prompt means with its 95% interval; None without any.

    Wilson's score interval where every value is 0 or 1, else Student's t clipped to [0, 1]. Values that do not differ say
    nothing of their own spread: then Wilson's again, whose variance is the largest that values in [0, 1] with this mean have.
    """
    n = len(means)
    if n == 0:
        return None
    mean = math.fsum(means) / n
    variance = math.fsum((value - mean) ** 2 for value in means) / (n - 1) if n > 1 else 0.0
    stderr = math.sqrt(variance / n)
    if variance == 0.0 or all(value in (0.0, 1.0) for value in means):
        low, high = _wilson(mean, n)
    else:
        half = _t_quantile(n - 1) * stderr
        low, high = max(0.0, mean - half), min(1.0, mean + half)
    return Estimate(mean=mean, stderr=stderr, low=low, high=high, n=n)


def _wilson(mean: float, n: int) -> tuple[float, float]:
    """Wilson (1927), equation 4: the score interval of a proportion."""
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _t_quantile(degrees: int) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))


def coverage_and_bounds(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Graded share of all samples; the mean reward if all ungraded ones were wrong; the same if all were right."""
    graded = [sample.reward for sample in samples if sample.reward is not None]
    total = len(samples)
    if total == 0:
        return 0.0, 0.0, 1.0
    missing = total - len(graded)
    earned = math.fsum(graded)
    return len(graded) / total, earned / total, (earned + missing) / total


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

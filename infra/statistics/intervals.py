"""An interval holds the true mean in 95% of evaluations, and is never of zero width because the values happen to agree."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from infra.model import Estimate

CONFIDENCE = 0.95
NOISE = 1e-12  # rewards are in [0, 1]: what is below this is rounding, not a difference
Z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def estimate(means: Sequence[float]) -> Estimate | None:
    """Mean of per-prompt means, each in [0, 1], with its 95% interval; None without any.

    Wilson's score interval where every value is 0 or 1, else Student's t clipped to [0, 1]. Values that do not differ say
    nothing of their own spread: then Wilson's again, whose variance is the largest that values in [0, 1] with this mean have.
    """
    n = len(means)
    if n == 0:
        return None
    mean, stderr = mean_and_stderr(means)
    if stderr == 0.0 or is_binary(means):
        low, high = wilson(mean, n)
        return Estimate(mean=mean, stderr=stderr, low=low, high=high, n=n, method="wilson")
    half = t_quantile(n - 1) * stderr
    return Estimate(mean=mean, stderr=stderr, low=max(0.0, mean - half), high=min(1.0, mean + half), n=n, method="t")


def is_binary(values: Sequence[float]) -> bool:
    return all(value in (0.0, 1.0) for value in values)


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and sample standard deviation over sqrt(n); the latter is 0 for one value, which shows none."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1 or max(values) - min(values) <= NOISE:
        return mean, 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def wilson(mean: float, n: int) -> tuple[float, float]:
    """Wilson (1927), equation 4: the score interval of a proportion."""
    centre = (mean + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(mean * (1 - mean) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def t_quantile(degrees: int) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))

"""Two points are compared prompt by prompt: what both found hard or easy cancels, and what is left is the difference.

Miller, "Adding Error Bars to Evals", arXiv:2411.00640, section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TypeVar

from infra.model import PairedDifference
from infra.statistics.intervals import NOISE, Z, is_binary, mean_and_stderr, t_quantile
from infra.statistics.power import minimum_detectable

MANY = 10
Key = TypeVar("Key", bound=Hashable)


def paired_difference(mine: Mapping[Key, float], other: Mapping[Key, float]) -> PairedDifference | None:
    """Mean of mine minus other, scores in [0, 1], over the prompts that both have; None if they have none in common."""
    common = [key for key in mine if key in other]
    if not common:
        return None
    differences = [mine[key] - other[key] for key in common]
    gained, lost = sum(value > NOISE for value in differences), sum(value < -NOISE for value in differences)
    mean, stderr = mean_and_stderr(differences)
    n = len(common)
    known = PairedDifference(mean=mean, stderr=stderr, n=n, gained=gained, lost=lost)
    if n == 1:
        return replace(known, note="one prompt in common: nothing can be said")
    known = replace(known, minimum_detectable=minimum_detectable(stderr * math.sqrt(n), n))
    if is_binary([scores[key] for key in common for scores in (mine, other)]):
        low, high = tango(gained, lost, n)
        return replace(known, low=low, high=high, p_value=mcnemar(gained, lost), method="tango")
    if stderr == 0.0:
        return replace(known, note="all prompts differ by the same: nothing is known of the spread")
    half = t_quantile(n - 1) * stderr
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return replace(known, low=low, high=high, p_value=_t_test(mean / stderr, n - 1), method="t")


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p-value that prompts rise and fall with the same chance (McNemar 1947, binomial form); 1 if none does."""
    from scipy import stats

    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def _t_test(statistic: float, degrees: int) -> float:
    from scipy import special

    return float(2 * special.stdtr(degrees, -abs(statistic)))


def tango(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95% score interval of (gained - lost) / n (Tango, Statistics in Medicine 17:891, 1998): the pairs' Wilson.

    It has a width where no prompt rose or fell, and stays in [-1, 1].
    """
    return -_tango_high(lost, gained, n), _tango_high(gained, lost, n)


def _tango_high(gained: int, lost: int, n: int) -> float:
    """The largest difference that the observed one does not reject."""
    from scipy import optimize

    if gained == n:
        return 1.0

    def left(difference: float) -> float:
        """How far the observed difference is from being rejected; falls as the hypothesis rises."""
        fall = _chance_to_fall(gained, lost, n, difference)
        variance = n * (2 * fall + difference * (1 - difference))
        return gained - lost - n * difference + Z * math.sqrt(max(0.0, variance))

    return float(optimize.brentq(left, (gained - lost) / n + 1e-9, 1.0, xtol=1e-12))


def _chance_to_fall(gained: int, lost: int, n: int, difference: float) -> float:
    """Most likely chance that a prompt falls, if rising is by `difference` more likely than that."""
    linear = (2 * n - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    return (math.sqrt(max(0.0, linear * linear - 8 * n * constant)) - linear) / (4 * n)


def chance_note(points: int, datasets: int) -> str:
    """A warning where so many comparisons are made that some show a difference by chance; else empty."""
    comparisons = points * datasets
    if comparisons < MANY:
        return ""
    expected = comparisons * 0.05
    about = f"{expected:.{1 if expected < 2 else 0}f}"
    return (
        f"{points} points x {datasets} {'dataset' if datasets == 1 else 'datasets'} are {comparisons} comparisons: if nothing "
        f"had changed at all, about {about} would still show a difference at 95%, and the best point of many looks "
        f"better than it is. One that must hold alone needs p < {0.05 / comparisons:.1g} (Bonferroni)."
    )

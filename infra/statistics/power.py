"""How large a true difference must be to be seen, so that "no difference" is not read as "the same"."""

from __future__ import annotations

import math

from infra.statistics.intervals import t_quantile

POWER = 0.8


def minimum_detectable(deviation: float, n: int) -> float | None:
    """The true mean of `n` paired differences with standard deviation `deviation` that a t-test shows with 80% power.

    Two-sided, at 5%, by the noncentral t distribution (Cohen, "Statistical Power Analysis", 2nd edition, chapter 2; for
    evaluations Miller, arXiv:2411.00640, section 5). None where n or the deviation says nothing.
    """
    from scipy import special

    if n < 2 or deviation <= 0:
        return None
    shift = float(special.nctdtrinc(n - 1, 1 - POWER, t_quantile(n - 1)))  # the far tail's share of the power is below 1e-5
    return shift * deviation / math.sqrt(n)

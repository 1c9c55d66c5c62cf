"""How often a 95% interval holds the true value, for each kind that infra/statistics makes and for settings it meets.

    python -m benchmarks.interval_coverage [--runs 20000]

Wilson's and Tango's are computed, not simulated: over all outcomes, each with its chance. Student's, for scores and for paired
differences, is simulated: each prompt has a chance to be answered right of its own, drawn from a beta distribution, and is
asked `samples` times. `spread` U is even over [0, 1]; J has most prompts near 0 or 1; R has mean 0.2, most of them hopeless;
X has mean 0.05. The second point of a pair answers each prompt with the same chance plus 0.1 of what is missing.
The table is in docs/statistics.md.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import stats

from infra.statistics import estimate, paired_difference
from infra.statistics.comparison import tango

SPREADS = {"U": (1.0, 1.0), "J": (0.5, 0.5), "R": (0.4, 1.6), "X": (0.2, 3.8)}
GAIN = 0.1


def wilson(n: int, p: float) -> float:
    """n prompts, one sample each, right with chance p."""
    made = [estimate([1.0] * right + [0.0] * (n - right)) for right in range(n + 1)]
    chances = stats.binom.pmf(range(n + 1), n, p)
    return float(sum(chance for chance, one in zip(chances, made, strict=True) if one and one.low <= p <= one.high))


def tangos(n: int, rise: float, fall: float) -> float:
    """n pairs of one sample each, of which a prompt rises and falls with these chances."""
    covered = 0.0
    for gained in range(n + 1):
        for lost in range(n - gained + 1):
            chance = stats.multinomial.pmf([gained, lost, n - gained - lost], n, [rise, fall, 1 - rise - fall])
            if chance > 1e-9:
                low, high = tango(gained, lost, n)
                covered += float(chance) * (low <= rise - fall <= high)
    return covered


def students(prompts: int, samples: int, spread: str, runs: int, seed: int = 0) -> float:
    """The score of prompts of unequal difficulty; `runs` evaluations, each with prompts of its own."""
    random = np.random.default_rng(seed)
    a, b = SPREADS[spread]
    means = random.binomial(samples, random.beta(a, b, (runs, prompts))) / samples
    made = [estimate(row) for row in means.tolist()]
    return sum(one is not None and one.low <= a / (a + b) <= one.high for one in made) / runs


def paired_students(prompts: int, samples: int, spread: str, runs: int, seed: int = 0) -> float:
    """The difference of two points on common prompts; where there is no interval, none covers."""
    random = np.random.default_rng(seed)
    a, b = SPREADS[spread]
    before = random.beta(a, b, (runs, prompts))
    first = random.binomial(samples, before) / samples
    second = random.binomial(samples, before + GAIN * (1 - before)) / samples
    true, covered = GAIN * (1 - a / (a + b)), 0
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        made = paired_difference(dict(enumerate(other)), dict(enumerate(one)))
        covered += made is not None and made.low is not None and made.high is not None and made.low <= true <= made.high
    return covered / runs


def main() -> None:
    parser = argparse.ArgumentParser(description="How often a 95% interval holds the true value")
    parser.add_argument("--runs", type=int, default=20000)
    runs = parser.parse_args().runs
    sizes = (10, 30, 100, 400)
    print(f"| interval | setting | {' | '.join(f'n = {n}' for n in sizes)} |\n|---|---|{'---|' * len(sizes)}")
    for p in (0.02, 0.1, 0.3, 0.5, 0.9):
        _row("Wilson", f"p = {p:g}", [wilson(n, p) for n in sizes])
    grid = np.linspace(0.02, 0.98, 97).tolist()
    _row("Wilson", "mean over p from 0.02 to 0.98", [float(np.mean([wilson(n, p) for p in grid])) for n in sizes])
    for spread, samples in (("U", 4), ("J", 4), ("R", 4), ("R", 16), ("X", 4)):
        _row("t", f"{spread}, {samples} samples a prompt", [students(n, samples, spread, runs) for n in sizes])
    for rise, fall in ((0.02, 0.02), (0.1, 0.05), (0.3, 0.1)):
        _row("Tango", f"{rise:.0%} rise, {fall:.0%} fall", [tangos(n, rise, fall) for n in sizes])
    for spread in SPREADS:
        _row("paired t", f"{spread}, 4 samples a prompt", [paired_students(n, 4, spread, runs) for n in sizes])


def _row(interval: str, setting: str, covered: list[float]) -> None:
    print(f"| {interval} | {setting} | {' | '.join(f'{value:.3f}' for value in covered)} |", flush=True)


if __name__ == "__main__":
    main()

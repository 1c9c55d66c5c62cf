"""What k responses to a prompt are worth, without bias, from the n that there are; k never exceeds a dataset's own n.

Estimates are made per prompt, from its own n, and then averaged over prompts. Drawing k of n with replacement, or k > n,
would be biased: of four responses with one right, the best of four *is* right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from infra.model import Estimate, Sample
from infra.statistics.intervals import estimate
from infra.statistics.scores import problem_id, rewards_by_prompt

RIGHT = 1.0


def pass_at(k: int, rewards: Sequence[float]) -> float:
    """Chance that one of k responses is right: 1 - C(n-c, k) / C(n, k) (Chen et al., arXiv:2107.03374, equation 1).

    Raises ValueError for a k that n responses say nothing about.
    """
    n, right = len(rewards), sum(reward >= RIGHT for reward in rewards)
    _check(k, n)
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def best_at(k: int, rewards: Sequence[float]) -> float:
    """Expected best reward of k responses: the mean of the maximum over all C(n, k) choices of k among the n.

    The i-th smallest is the best of C(i-1, k-1) of them. For rewards of 0 and 1 it is `pass_at`.
    """
    n = len(rewards)
    _check(k, n)
    ways = math.comb(n, k)
    return math.fsum(reward * (math.comb(i, k - 1) / ways) for i, reward in enumerate(sorted(rewards)))


def _check(k: int, n: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}: {n} responses allow 1 to {n}")


def pass_at_k(samples: Iterable[Sample]) -> dict[int, Estimate]:
    """pass@k for each power of two up to the most responses that a prompt has, and for that number itself."""
    return _each_k(samples, pass_at)


def best_at_k(samples: Iterable[Sample]) -> dict[int, Estimate]:
    """Expected best of k, for the same k; empty where it would only repeat `pass_at_k`."""
    samples = list(samples)
    if all(sample.reward in (None, 0.0, 1.0) for sample in samples):
        return {}
    return _each_k(samples, best_at)


def _each_k(samples: Iterable[Sample], of: Callable[[int, Sequence[float]], float]) -> dict[int, Estimate]:
    """For each k, over the prompts with at least k graded responses: fewer say nothing about k."""
    groups = list(rewards_by_prompt(samples, problem_id).values())
    most = max(map(len, groups), default=0)
    ks = {2**power for power in range(most.bit_length())} | {most}
    made = {k: estimate([of(k, rewards) for rewards in groups if len(rewards) >= k]) for k in sorted(ks) if k}
    return {k: value for k, value in made.items() if value is not None}

"""What k responses to a prompt are worth, without bias, from the n that there are; k never exceeds a dataset's own n."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.statistics import best_at, best_at_k, estimate, pass_at, pass_at_k, prompt_means
from tests.infra.examples import sample

rewards_of_a_prompt = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=8)


def test_four_responses_with_one_right_hold_a_right_one_for_certain() -> None:
    """Drawn with replacement it would be 1 - (3/4)^4 = 0.684."""
    assert pass_at(4, [0.0, 1.0, 0.0, 0.0]) == 1.0
    assert best_at(4, [0.0, 1.0, 0.0, 0.0]) == 1.0


@pytest.mark.parametrize(("n", "right", "k"), [(10, 3, 1), (10, 3, 5), (200, 7, 100), (5, 0, 5), (5, 5, 1), (64, 1, 32)])
def test_pass_at_k_is_the_product_that_the_codex_paper_computes(n: int, right: int, k: int) -> None:
    product = 1.0 if n - right < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - right + 1, n + 1)))
    assert pass_at(k, [1.0] * right + [0.0] * (n - right)) == pytest.approx(product, abs=1e-12)


@given(rewards_of_a_prompt, st.integers(1, 8))
def test_both_are_the_mean_over_all_choices_of_k_responses(rewards: list[float], k: int) -> None:
    if k > len(rewards):
        return
    chosen = list(itertools.combinations(rewards, k))
    assert best_at(k, rewards) == pytest.approx(math.fsum(max(some) for some in chosen) / len(chosen))
    assert pass_at(k, rewards) == pytest.approx(sum(1.0 in some for some in chosen) / len(chosen))


def test_an_estimate_from_n_responses_is_right_on_average() -> None:
    """The plug-in estimate 1 - (1 - c/n)^k is not: that is the bias which the unbiased one removes."""
    p, n, k = 0.3, 8, 4
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    unbiased = sum(chance * pass_at(k, [1.0] * c + [0.0] * (n - c)) for c, chance in enumerate(chances))
    plugged_in = sum(chance * (1 - (1 - c / n) ** k) for c, chance in enumerate(chances))
    assert unbiased == pytest.approx(1 - (1 - p) ** k)
    assert abs(plugged_in - unbiased) > 0.02


@pytest.mark.parametrize("k", [0, 5])
def test_a_k_that_the_responses_say_nothing_about_is_refused(k: int) -> None:
    for of in (pass_at, best_at):
        with pytest.raises(ValueError, match="4 responses allow 1 to 4"):
            of(k, [1.0, 0.0, 0.0, 0.0])


def test_k_goes_by_powers_of_two_up_to_the_datasets_own_n_and_has_that_too() -> None:
    assert list(pass_at_k([sample("p", i, 1.0) for i in range(6)])) == [1, 2, 4, 6]
    assert list(pass_at_k([sample("p", i, 1.0) for i in range(20)])) == [1, 2, 4, 8, 16, 20]
    assert list(pass_at_k([sample("p", 0, 1.0)])) == [1]
    assert pass_at_k([sample("p", 0, None)]) == {}


def test_pass_at_1_is_the_score_of_right_and_wrong() -> None:
    samples = [sample(f"p{i}", j, float((i * 7 + j * 3) % 4 == 0)) for i in range(9) for j in range(4)]
    score, at_1 = estimate(prompt_means(samples)), pass_at_k(samples)[1]
    assert score is not None
    assert (at_1.mean, at_1.low, at_1.high) == pytest.approx((score.mean, score.low, score.high))


def test_a_prompt_with_fewer_graded_responses_than_k_says_nothing_about_k() -> None:
    full = [sample("full", i, float(i == 0)) for i in range(4)]
    half = [sample("half", i, 0.0 if i < 2 else None) for i in range(4)]
    passes = pass_at_k([*full, *half])
    assert (passes[2].n, passes[4].n) == (2, 1)
    assert passes[2].mean == pytest.approx((0.5 + 0.0) / 2)
    assert passes[4].mean == 1.0


def test_only_a_full_reward_passes_and_best_at_k_says_what_the_parts_are_worth() -> None:
    samples = [sample("p", 0, 0.5), sample("p", 1, 0.75)]
    assert pass_at_k(samples)[2].mean == 0.0
    assert {k: value.mean for k, value in best_at_k(samples).items()} == {1: 0.625, 2: 0.75}


def test_best_at_k_is_not_noted_where_it_would_repeat_pass_at_k() -> None:
    assert best_at_k([sample("p", 0, 1.0), sample("p", 1, 0.0), sample("p", 2, None)]) == {}

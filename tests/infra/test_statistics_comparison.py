"""Two points are compared prompt by prompt: what both found hard or easy cancels, and what is left is the difference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from infra.model import PairedDifference
from infra.statistics import chance_note, minimum_detectable, paired_difference
from infra.statistics.comparison import mcnemar, tango

unit = st.floats(0, 1, allow_nan=False)


def difference(mine: Sequence[float], other: Sequence[float]) -> PairedDifference:
    made = paired_difference(dict(enumerate(mine)), dict(enumerate(other)))
    assert made is not None
    return made


def test_fractions_are_compared_as_scipys_paired_t_test_does() -> None:
    mine, other = [0.25, 0.5, 1.0, 0.75, 0.5, 0.0], [0.0, 0.5, 0.75, 0.25, 0.75, 0.0]
    made, known = difference(mine, other), stats.ttest_rel(mine, other)
    interval = known.confidence_interval(0.95)
    assert made.method == "t"
    assert (made.low, made.high, made.p_value) == pytest.approx((interval.low, interval.high, known.pvalue))
    assert (made.mean, made.n, made.gained, made.lost) == (0.125, 6, 3, 1)


def test_pairing_makes_the_difference_surer_than_two_scores_apart() -> None:
    random = np.random.default_rng(0)
    hard = random.beta(0.5, 0.5, 60)
    mine, other = random.binomial(8, np.minimum(1, hard + 0.05)) / 8, random.binomial(8, hard) / 8
    apart = math.hypot(stats.sem(mine), stats.sem(other))
    assert difference(mine.tolist(), other.tolist()).stderr < 0.6 * apart


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (5, 0), (9, 2), (30, 25)])
def test_right_and_wrong_is_tested_as_statsmodels_exact_mcnemar(gained: int, lost: int) -> None:
    from statsmodels.stats.contingency_tables import mcnemar as reference

    known = reference([[20, gained], [lost, 10]], exact=True).pvalue
    assert mcnemar(gained, lost) == pytest.approx(min(1.0, known))
    made = difference([1.0] * gained + [0.0] * lost + [1.0] * 20, [0.0] * gained + [1.0] * lost + [1.0] * 20)
    assert (made.gained, made.lost, made.method) == (gained, lost, "tango")
    assert made.p_value == mcnemar(gained, lost)


def score_statistic(gained: int, lost: int, n: int, under: float) -> float:
    """How many standard errors the observed difference lies from `under`, the rates fitted under it by brute force."""

    def loss(fall: float) -> float:
        rates = (fall + under, fall, 1 - under - 2 * fall)
        return -sum(
            count * math.log(rate) for count, rate in zip((gained, lost, n - gained - lost), rates, strict=True) if count
        )

    room = (max(0.0, -under) + 1e-12, (1 - under) / 2 - 1e-12)
    fall = optimize.minimize_scalar(loss, bounds=room, method="bounded", options={"xatol": 1e-13}).x
    return float((gained - lost - n * under) / math.sqrt(n * (2 * fall + under - under**2)))


@pytest.mark.parametrize(("gained", "lost", "n"), [(12, 2, 50), (3, 1, 20), (30, 25, 200), (0, 4, 30), (1, 0, 44)])
def test_tangos_interval_ends_where_the_score_test_begins_to_reject(gained: int, lost: int, n: int) -> None:
    low, high = tango(gained, lost, n)
    assert score_statistic(gained, lost, n, low) == pytest.approx(stats.norm.ppf(0.975), abs=1e-4)
    assert score_statistic(gained, lost, n, high) == pytest.approx(stats.norm.ppf(0.025), abs=1e-4)


@pytest.mark.parametrize("n", [2, 10, 1000])
def test_no_change_at_all_is_no_certainty(n: int) -> None:
    made = difference([1.0, 0.0] * (n // 2), [1.0, 0.0] * (n // 2))
    z = stats.norm.ppf(0.975)
    assert (made.mean, made.p_value, made.minimum_detectable) == (0.0, 1.0, None)
    assert (made.low, made.high) == pytest.approx((-z * z / (n + z * z), z * z / (n + z * z)))
    assert made.verdict == "not told apart"


@given(st.integers(1, 200), st.data())
def test_tangos_interval_holds_the_difference_and_is_the_mirror_of_the_exchanged_points(n: int, data: st.DataObject) -> None:
    gained = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, n - gained))
    low, high = tango(gained, lost, n)
    assert -1 <= low <= (gained - lost) / n <= high <= 1
    assert high - low > 1 / (n + 4)
    assert tango(lost, gained, n) == pytest.approx((-high, -low))


def test_one_prompt_in_common_ranks_nothing() -> None:
    made = difference([1.0], [0.0])
    assert (made.mean, made.low, made.high, made.p_value, made.minimum_detectable) == (1.0, None, None, None, None)
    assert made.verdict == "can't be told"
    assert "one prompt" in made.note


def test_fractions_that_all_differ_by_the_same_have_no_interval_rather_than_one_of_zero_width() -> None:
    made = difference([0.5, 0.75, 1.0], [0.25, 0.5, 0.75])
    assert (made.mean, made.low, made.high, made.p_value) == (0.25, None, None, None)
    assert made.verdict == "can't be told"
    assert "spread" in made.note


def test_rounding_is_neither_a_spread_nor_a_change() -> None:
    made = difference([0.3, 0.2, 0.7], [0.2, 0.1, 0.6])  # 0.1, give or take 1e-16
    assert (made.stderr, made.low, made.verdict) == (0.0, None, "can't be told")
    assert difference([0.1 + 0.2, 0.5], [0.3, 0.25]).gained == 1


def test_nothing_in_common_is_no_difference() -> None:
    assert paired_difference({"a": 1.0}, {"b": 1.0}) is None


def test_only_common_prompts_count() -> None:
    made = paired_difference({"a": 1.0, "b": 0.0, "mine": 1.0}, {"b": 1.0, "a": 0.0, "other": 0.0})
    assert made is not None
    assert (made.mean, made.n) == (0.0, 2)


@pytest.mark.parametrize(
    ("gained", "lost", "verdict"),
    [(20, 2, "higher"), (2, 20, "lower"), (9, 7, "not told apart"), (5, 0, "not told apart")],
)
def test_a_difference_is_claimed_where_interval_and_test_agree(gained: int, lost: int, verdict: str) -> None:
    same = [1.0] * (100 - gained - lost)
    made = difference([1.0] * gained + [0.0] * lost + same, [0.0] * gained + [1.0] * lost + same)
    assert made.verdict == verdict


def test_five_that_rose_and_none_that_fell_is_an_interval_above_zero_and_no_claim_yet() -> None:
    low, _ = tango(5, 0, 100)
    assert low > 0
    assert mcnemar(5, 0) > 0.05


@given(st.lists(st.tuples(unit, unit), min_size=2, max_size=40))
def test_the_interval_holds_the_difference_and_stays_in_its_range(pairs: list[tuple[float, float]]) -> None:
    made = difference([mine for mine, _ in pairs], [other for _, other in pairs])
    if made.low is not None and made.high is not None:
        assert -1 <= made.low <= made.mean + 1e-12
        assert made.mean - 1e-12 <= made.high <= 1
        assert made.high > made.low


@pytest.mark.parametrize("n", [2, 5, 30, 1000])
def test_the_minimum_detectable_effect_is_statsmodels(n: int) -> None:
    from statsmodels.stats.power import TTestPower

    effect = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
    assert minimum_detectable(0.4, n) == pytest.approx(0.4 * effect, rel=1e-4)


def test_of_many_prompts_it_is_2_8_standard_errors() -> None:
    assert minimum_detectable(1.0, 10**6) == pytest.approx(2.8016e-3, rel=1e-3)


@pytest.mark.parametrize(("deviation", "n"), [(0.0, 100), (0.5, 1)])
def test_what_says_nothing_of_the_spread_says_nothing_of_what_could_be_seen(deviation: float, n: int) -> None:
    assert minimum_detectable(deviation, n) is None


def test_a_true_difference_of_that_size_shows_in_80_percent_of_evaluations() -> None:
    random = np.random.default_rng(0)
    effect = minimum_detectable(0.3, 25)
    assert effect is not None
    draws = random.normal(effect, 0.3, (20_000, 25))
    assert np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


def test_many_comparisons_are_warned_of_with_how_many_are_chance() -> None:
    assert chance_note(3, 2) == ""
    note = chance_note(20, 2)
    assert "40 comparisons" in note
    assert "about 2" in note
    assert "p < 0.001" in note
    assert "about 0.5 would" in chance_note(10, 1)

"""A score never stands alone: it carries its interval, its coverage, and the bounds that what is missing allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from infra.model import Sample, SampleOutcome
from infra.statistics import count_outcomes, coverage_and_bounds, estimate, prompt_means, version_metrics
from tests.infra.examples import sample

unit = st.floats(0, 1, allow_nan=False)


def test_nothing_graded_is_no_score() -> None:
    assert estimate([]) is None
    assert prompt_means([sample(reward=None)]) == []


def test_samples_of_a_prompt_are_averaged_first_so_the_error_is_clustered_by_prompt() -> None:
    clustered = [sample(f"p{i}", index, float(i % 2)) for i in range(6) for index in range(50)]
    means = prompt_means(clustered)
    assert means == [0.0, 1.0] * 3
    score = estimate(means)
    assert score is not None
    assert score.n == 6
    assert score.stderr == pytest.approx(stats.sem(means))


def test_the_clustered_error_is_the_one_statsmodels_gives_a_regression_on_nothing_but_a_constant() -> None:
    from statsmodels.regression.linear_model import OLS

    rewards = [[1, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]]
    samples = [sample(f"p{i}", j, float(reward)) for i, row in enumerate(rewards) for j, reward in enumerate(row)]
    flat, prompts = [float(reward) for row in rewards for reward in row], [i for i in range(5) for _ in range(4)]
    known = OLS(flat, [1.0] * 20).fit(cov_type="cluster", cov_kwds={"groups": prompts})
    score = estimate(prompt_means(samples))
    assert score is not None
    assert (score.mean, score.stderr) == pytest.approx((known.params[0], known.bse[0]))
    assert score.method == "t"


def test_a_greedy_answer_asked_four_times_is_no_surer() -> None:
    once = [sample(f"p{i}", 0, float(i % 3 == 0)) for i in range(20)]
    four = [sample(one.problem_id, j, one.reward) for one in once for j in range(4)]
    assert estimate(prompt_means(four)) == estimate(prompt_means(once))


def test_an_ungraded_sample_is_left_out_of_its_prompts_mean_and_is_not_a_zero() -> None:
    assert prompt_means([sample("p", 0, 1.0), sample("p", 1, None), sample("q", 0, None)]) == [1.0]


def test_the_interval_of_fractions_is_students() -> None:
    means = [0.2, 0.5, 0.9, 0.4, 0.6]
    score = estimate(means)
    assert score is not None
    low, high = stats.t.interval(0.95, 4, loc=0.52, scale=stats.sem(means))
    assert (score.mean, score.low, score.high) == pytest.approx((0.52, low, high))


@pytest.mark.parametrize(("right", "n"), [(0, 10), (10, 10), (3, 10), (1, 1), (50, 200)])
def test_the_interval_of_right_or_wrong_is_wilsons(right: int, n: int) -> None:
    score = estimate([1.0] * right + [0.0] * (n - right))
    assert score is not None
    z, p = stats.norm.ppf(0.975), right / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (score.low, score.high) == pytest.approx((centre - half, centre + half), abs=1e-12)
    assert score.high - score.low > 0  # all right of ten is not certainty
    assert score.method == "wilson"


@pytest.mark.parametrize(("right", "n"), [(0, 10), (7, 9), (123, 400)])
def test_scipy_and_statsmodels_give_the_same_interval(right: int, n: int) -> None:
    from statsmodels.stats.proportion import proportion_confint

    score = estimate([1.0] * right + [0.0] * (n - right))
    assert score is not None
    known = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert (score.low, score.high) == pytest.approx((known.low, known.high), abs=1e-12)
    assert (score.low, score.high) == pytest.approx(proportion_confint(right, n, method="wilson"), abs=1e-12)


@pytest.mark.parametrize("means", [[0.5], [0.5, 0.5], [0.25] * 30, [1.0, 1.0], [0.0]])
def test_values_that_do_not_differ_say_nothing_of_their_spread_and_get_wilsons_interval(means: list[float]) -> None:
    score = estimate(means)
    assert score is not None
    assert score.high - score.low > 1.5 / (len(means) + 4)
    assert score.low <= means[0] <= score.high


@given(st.lists(unit, min_size=1, max_size=60))
def test_the_mean_lies_in_its_interval_and_the_interval_in_the_unit(means: list[float]) -> None:
    score = estimate(means)
    assert score is not None
    assert score.n == len(means)
    assert 0 <= score.low <= score.mean + 1e-12
    assert score.mean - 1e-12 <= score.high <= 1
    assert score.stderr >= 0


@given(st.lists(unit, min_size=2, max_size=30))
def test_an_estimate_does_not_depend_on_the_order(means: list[float]) -> None:
    a, b = estimate(means), estimate(sorted(means))
    assert a is not None
    assert b is not None
    assert (a.mean, a.low, a.high) == pytest.approx((b.mean, b.low, b.high))


@given(st.lists(st.one_of(st.none(), unit), max_size=50))
def test_the_bounds_hold_whatever_the_missing_would_have_been(rewards: list[float | None]) -> None:
    samples = [sample("p", i, reward) for i, reward in enumerate(rewards)]
    coverage, worst, best = coverage_and_bounds(samples)
    assert 0 <= coverage <= 1
    for filled in (0.0, 0.5, 1.0):
        if rewards:
            mean = math.fsum(filled if r is None else r for r in rewards) / len(rewards)
            assert worst - 1e-12 <= mean <= best + 1e-12
    assert best - worst == pytest.approx(1 - coverage)


def test_coverage_is_the_graded_share() -> None:
    samples = [sample("p", 0, 1.0), sample("p", 1, 0.0), sample("p", 2, None), sample("p", 3, None)]
    assert coverage_and_bounds(samples) == (0.5, 0.25, 0.75)
    assert coverage_and_bounds([]) == (0.0, 0.0, 1.0)


def test_every_outcome_is_counted_also_those_that_did_not_happen() -> None:
    counted = count_outcomes([sample(), sample(outcome=SampleOutcome.TRUNCATED)])
    assert set(counted) == {outcome.value for outcome in SampleOutcome}
    assert (counted["ok"], counted["truncated"], counted["infra_error"]) == (1, 1, 0)


def step_of(token: str) -> int:
    return int(token.split("/")[1])


def versions(*tokens: str) -> Sample:
    return sample(weight_versions=tokens)


def test_the_mean_version_is_the_step_when_all_responses_are_of_it() -> None:
    assert version_metrics([versions("r/40/0/d"), versions("r/40/0/d")], step_of) == (40.0, 0.0)


def test_a_response_that_spans_versions_is_counted_as_mixed() -> None:
    answers = [versions("r/40/0/d", "r/50/0/e"), versions("r/40/0/d"), versions("r/40/0/d", "r/40/0/d")]
    mean, mixed = version_metrics(answers, step_of)
    assert mean == 42.5
    assert mixed == pytest.approx(1 / 3)


def test_without_responses_there_is_no_version() -> None:
    mean, mixed = version_metrics([sample(reward=None, weight_versions=())], step_of)
    assert math.isnan(mean)
    assert mixed == 0.0

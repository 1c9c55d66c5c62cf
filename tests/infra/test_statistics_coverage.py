"""A 95% interval holds the true value in 95 of 100 evaluations, give or take one; where it does not is written down."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.interval_coverage import paired_students, students, tangos, wilson

WITHIN = pytest.approx(0.95, abs=0.01)
RUNS = 10_000


@pytest.mark.parametrize("n", [10, 30, 100])
def test_wilsons_interval_covers_95_percent_over_all_difficulties(n: int) -> None:
    assert np.mean([wilson(n, p) for p in np.linspace(0.02, 0.98, 97).tolist()]) == WITHIN


def test_with_400_prompts_wilsons_interval_covers_95_percent_at_each_difficulty() -> None:
    covered = [wilson(400, p) for p in np.linspace(0.1, 0.9, 17).tolist()]
    assert covered == pytest.approx([0.95] * 17, abs=0.01)


@pytest.mark.parametrize(("n", "least"), [(10, 0.91), (30, 0.92), (100, 0.93)])
def test_at_single_difficulties_few_prompts_make_wilsons_coverage_swing(n: int, least: float) -> None:
    covered = [wilson(n, p) for p in np.linspace(0.02, 0.98, 97).tolist()]
    assert least < min(covered) < 0.94


@pytest.mark.parametrize(("n", "rise", "fall"), [(100, 0.1, 0.05), (100, 0.3, 0.1), (100, 0.02, 0.02), (30, 0.3, 0.1)])
def test_tangos_interval_covers_95_percent(n: int, rise: float, fall: float) -> None:
    assert tangos(n, rise, fall) == WITHIN


def test_few_pairs_that_hardly_change_make_tangos_interval_too_wide_and_never_too_narrow() -> None:
    assert tangos(10, 0.02, 0.02) > 0.96
    assert tangos(30, 0.02, 0.02) > 0.96


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "samples", "spread"), [(10, 4, "U"), (30, 4, "J"), (50, 16, "U"), (100, 4, "R")])
def test_the_t_interval_of_clustered_samples_covers_95_percent(prompts: int, samples: int, spread: str) -> None:
    assert students(prompts, samples, spread, RUNS) == WITHIN


@pytest.mark.slow
def test_the_t_interval_of_a_score_near_its_edge_from_few_prompts_is_too_narrow() -> None:
    assert 0.88 < students(30, 4, "X", RUNS) < 0.92


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "spread"), [(10, "U"), (30, "J"), (30, "R"), (30, "X")])
def test_the_t_interval_of_a_paired_difference_covers_95_percent(prompts: int, spread: str) -> None:
    assert paired_students(prompts, 4, spread, RUNS) == WITHIN


@pytest.mark.slow
def test_an_interval_that_took_samples_of_a_prompt_for_independent_would_fail_this_test() -> None:
    """What is measured here can tell: the error that clustering prevents covers far less."""
    random = np.random.default_rng(0)
    right = random.binomial(16, random.beta(0.5, 0.5, (2000, 30))).sum(axis=1)
    p = right / (16 * 30)
    half = 1.96 * np.sqrt(p * (1 - p) / (16 * 30))
    assert np.mean(np.abs(p - 0.5) <= half) < 0.7

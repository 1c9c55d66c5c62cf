"""A dataset's numbers come from its own samples and its own n, whatever the other datasets of the suite are asked for."""

from __future__ import annotations

import pytest

from infra.model import DatasetResult, DatasetSpec, Sample, SampleOutcome
from tasks.run_dataset import summarise
from tests.infra.examples import dataset, sample


def result(samples: list[Sample], samples_per_prompt: int) -> DatasetResult:
    return summarised(dataset(samples_per_prompt=samples_per_prompt, max_failed_share=1.0), samples)


def summarised(spec: DatasetSpec, samples: list[Sample]) -> DatasetResult:
    return summarise(spec, samples, "file:///store/samples", 1.0, lambda token: int(token.split("/")[1]))


def test_31_prompts_with_4_samples_are_summarised_beside_a_dataset_with_8() -> None:
    odd = result([sample(f"p{i}", j, float(j == 0)) for i in range(31) for j in range(4)], 4)
    full = result([sample(f"p{i}", j, float(j == 0)) for i in range(16) for j in range(8)], 8)
    assert (odd.n_prompts, odd.n_samples, odd.samples_per_prompt) == (31, 124, 4)
    assert {k: passed.mean for k, passed in odd.pass_at_k.items()} == {1: 0.25, 2: 0.5, 4: 1.0}
    assert {k: passed.mean for k, passed in full.pass_at_k.items()} == {1: 0.125, 2: 0.25, 4: 0.5, 8: 1.0}


def test_n_samples_counts_samples_and_n_prompts_counts_problems() -> None:
    made = result([sample(f"p{i}", j, 1.0) for i in range(5) for j in range(3)], 3)
    assert made.score is not None
    assert (made.n_prompts, made.n_samples, made.score.n) == (5, 15, 5)


def test_a_sample_that_could_not_be_graded_moves_the_bounds_and_not_the_score() -> None:
    graded = [sample("p", 0, 1.0), sample("q", 0, 0.0)]
    lost = [sample("r", 0, None), sample("s", 0, None, outcome=SampleOutcome.GRADER_TIMEOUT)]
    made = result([*graded, *lost], 1)
    assert made.score is not None
    assert (made.score.mean, made.score.n) == (0.5, 2)
    assert (made.coverage, made.worst, made.best) == (0.5, 0.25, 0.75)
    assert made.lengths is not None
    assert made.lengths.n == 3  # the response whose grader hung did come


def test_every_number_of_a_dataset_is_there() -> None:
    samples = [
        sample("p", 0, 0.5, response="no " * 900, outcome=SampleOutcome.TRUNCATED, completion_tokens=900),
        sample("p", 1, 1.0),
        sample("q", 0, 0.0, outcome=SampleOutcome.NO_ANSWER),
        sample("q", 1, 1.0),
    ]
    made = result(samples, 2)
    assert made.score is not None
    assert made.score_completed is not None
    assert (made.score.mean, made.score_completed.mean) == (0.625, 0.75)
    assert (made.truncated_ratio, made.repetition_ratio) == (0.25, 0.25)
    assert {k: best.mean for k, best in made.best_at_k.items()} == pytest.approx({1: 0.625, 2: 1.0})
    assert made.lengths is not None
    assert made.lengths.longest == 900


def test_a_dataset_of_which_too_much_failed_has_no_score_and_says_how_much() -> None:
    samples = [*(sample(f"p{i}", 0, 1.0) for i in range(19)), sample("x", 0, None)]
    few = summarised(dataset(), samples)
    assert few.score is not None
    assert few.no_score == ""
    many = summarised(dataset(max_failed_share=0.04), samples)
    assert (many.score, many.score_completed, many.pass_at_k, many.best_at_k) == (None, None, {}, {})
    assert many.no_score.startswith("1 of 20 samples got no answer or no grade (1 infra_error)")
    assert (many.coverage, many.worst, many.best) == (0.95, 0.95, 1.0)


def test_wrong_truncated_and_missing_answers_are_the_models_own_and_keep_the_score() -> None:
    outcomes = (SampleOutcome.OK, SampleOutcome.TRUNCATED, SampleOutcome.NO_ANSWER)
    made = summarised(dataset(max_failed_share=0.0), [sample(f"p{o}", 0, 0.0, outcome=o) for o in outcomes])
    assert made.score is not None
    assert made.score.mean == 0.0

"""What responses are like beside their score: how long, cut off or not, and whether they end in a loop."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from infra.model import SampleOutcome
from infra.statistics import ends_in_a_loop, lengths, repetition_ratio, score_completed, truncated_ratio
from tests.infra.examples import sample

TRUNCATED = SampleOutcome.TRUNCATED
PROSE = (
    "First I add the units, four and nine, which gives thirteen, so I write three and carry one. Then come the tens: two and "
    "five and the carried one make eight. Put together that is eighty-three, and a quick check by subtraction agrees with it."
)


def test_quantiles_are_of_the_responses_that_came() -> None:
    tokens = [3, 5, 8, 13, 21, 34, 55]
    samples = [sample("p", i, completion_tokens=count) for i, count in enumerate(tokens)]
    made = lengths([*samples, sample("p", 9, None, completion_tokens=0)])
    assert made is not None
    assert (made.n, made.longest) == (7, 55)
    assert made.mean == pytest.approx(sum(tokens) / 7)
    assert (made.p10, made.p50, made.p90, made.p99) == pytest.approx([np.percentile(tokens, p) for p in (10, 50, 90, 99)])


def test_without_a_response_there_is_no_length_and_no_loop() -> None:
    assert lengths([sample(reward=None)]) is None
    assert repetition_ratio([sample(reward=None)]) is None


def test_a_truncated_response_counts_as_long_as_it_got() -> None:
    made = lengths([sample(completion_tokens=512, outcome=TRUNCATED)])
    assert made is not None
    assert made.p50 == made.longest == 512


def test_the_score_of_the_completed_leaves_truncated_responses_out_and_not_the_unanswered() -> None:
    samples = [
        sample("p", 0, 1.0),
        sample("p", 1, 0.0, outcome=TRUNCATED),
        sample("q", 0, 0.0, outcome=SampleOutcome.NO_ANSWER),
        sample("r", 0, 0.0, outcome=TRUNCATED),
    ]
    made = score_completed(samples)
    assert made is not None
    assert (made.mean, made.n) == (0.5, 2)
    assert truncated_ratio(samples) == 0.5
    assert score_completed(samples[3:]) is None


def test_a_response_at_its_limit_is_truncated_also_if_nobody_could_grade_it() -> None:
    failed = sample("p", 0, None, outcome=SampleOutcome.GRADER_ERROR, finish="stop")
    samples = [failed, replace(failed, index=1, finish="length")]
    assert truncated_ratio(samples) == 0.5


@pytest.mark.parametrize(
    "unit", ["wait, ", "Let me check this again. ", "I should recompute the sum of these numbers.\n", "哈"]
)
def test_a_response_that_ends_in_a_loop_is_seen(unit: str) -> None:
    assert ends_in_a_loop(unit * 400)
    assert ends_in_a_loop(PROSE * 3 + unit * 4000)


def test_what_reasons_counts_or_tabulates_is_no_loop() -> None:
    words = PROSE.split()
    shuffled = random.Random(0)
    long = " ".join(shuffled.choice(words) for _ in range(4000))
    for text in ("", "4", PROSE, long, " ".join(map(str, range(3000))), "\n".join(f"| {i} | {i * i} |" for i in range(900))):
        assert not ends_in_a_loop(text)


def test_a_loop_at_the_end_of_a_long_sound_response_is_seen() -> None:
    shuffled = random.Random(2)
    sound = " ".join(shuffled.choice(PROSE.split()) for _ in range(5000))
    assert ends_in_a_loop(sound + "wait, " * 1700)


def test_a_loop_that_was_left_long_ago_is_not_its_end() -> None:
    shuffled = random.Random(1)
    assert not ends_in_a_loop("wait, " * 500 + " ".join(shuffled.choice(PROSE.split()) for _ in range(2500)))


def test_a_response_that_is_no_unicode_text_is_looked_at_all_the_same() -> None:
    assert ends_in_a_loop("\ud800" * 2000)


def test_the_ratio_is_over_the_responses_that_came() -> None:
    samples = [sample("p", 0, response="no " * 900), sample("p", 1), sample("p", 2, None, response="")]
    assert repetition_ratio(samples) == 0.5

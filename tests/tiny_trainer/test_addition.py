from __future__ import annotations

import re
import subprocess
import sys

import pytest

from trainer_integration.tiny_trainer.addition import all_pairs, answer, question, reward, split


def test_the_two_parts_of_a_split_share_no_pair_and_leave_none_out() -> None:
    parts = split(0)
    assert len(parts.train) == 9000
    assert len(parts.held_out) == 1000
    assert set(parts.train) | set(parts.held_out) == set(all_pairs())


def test_a_split_repeats_with_its_seed_and_differs_with_another() -> None:
    assert split(3) == split(3)
    assert split(3).held_out != split(4).held_out


def test_excluded_pairs_leave_training_and_do_not_move_the_held_out_ones() -> None:
    excluded = split(0).train[:500]
    parts = split(0, excluded=excluded)
    assert not set(parts.train) & set(excluded)
    assert len(parts.train) == 8500
    assert parts.held_out == split(0).held_out


def test_holding_out_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="0 to 10000"):
        split(0, held_out=10_001)


def test_questions_and_answers_are_padded_with_zeros() -> None:
    assert question((7, 12)) == "07+12="
    assert answer((7, 12)) == "019"


@pytest.mark.parametrize("text", ["046", "46", "0046"])
def test_the_sum_is_right_with_any_leading_zeros(text: str) -> None:
    assert reward((12, 34), text) == 1.0


@pytest.mark.parametrize("text", ["", "047", "0460", "046=", "x046", "-46", "4 6"])
def test_anything_but_the_sum_alone_is_wrong(text: str) -> None:
    assert reward((12, 34), text) == 0.0


def test_a_grader_that_reads_the_number_agrees_for_every_pair() -> None:
    for pair in all_pairs():
        found = re.match(r"^0*(\d+)", answer(pair))
        assert found is not None
        assert int(found[1]) == sum(pair)
        assert reward(pair, answer(pair)) == 1.0


def test_data_and_configuration_are_had_without_torch() -> None:
    modules = "trainer_integration.tiny_trainer.addition, trainer_integration.tiny_trainer.config"
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

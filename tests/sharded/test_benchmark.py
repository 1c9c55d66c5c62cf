"""The stall benchmark compares like with like, and says of each of its ratios what that is."""

from __future__ import annotations

import re

from benchmarks import trainer_stall

WARM, COLD = {"ours", "copy"}, {"fresh", "fresh_copy"}


def test_a_ratio_to_the_bare_copy_has_pages_that_exist_on_both_sides_or_on_neither() -> None:
    assert set(trainer_stall.RATIOS["stall_vs_copy"]) == WARM
    assert set(trainer_stall.RATIOS["fresh_stall_vs_copy"]) == COLD


def test_every_ratio_is_explained() -> None:
    for name in (*trainer_stall.RATIOS, "loop_cost_vs_rank0_serial", "on_step_ms_median"):
        assert re.search(rf"\b{name}\b", str(trainer_stall.__doc__)), name

"""A curve in one line: a block a point from the lowest to the highest, a mark where there is no number."""

from __future__ import annotations

import pytest

from infra.sparkline import sparkline


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([0.5], "▅"),
        ([0.5, 0.5, 0.5], "▅▅▅"),
        ([0.0, 1.0], "▁█"),
        ([0.0, None, 1.0], "▁×█"),
        ([None, None], "××"),
        ([float(number) for number in range(8)], "▁▂▃▄▅▆▇█"),
        ([-3.0, 0.0, 1e9], "▁▁█"),
        ([-1.7e308, 0.0, 1.7e308], "▁▅█"),
        ([0.0, 5e-324], "▁█"),
    ],
)
def test_each_value_is_a_block_and_each_gap_a_mark(values: list[float | None], line: str) -> None:
    assert sparkline(values, 80) == line


def test_where_there_is_no_room_the_newest_are_shown_and_the_others_hinted_at() -> None:
    assert sparkline([9.0, 9.0, 0.0, 1.0], 3) == "…▁█"
    assert sparkline([9.0, 9.0, 0.0, 1.0], 4) == "██▁▁"
    assert len(sparkline([float(number) for number in range(1_000)], 40)) == 40

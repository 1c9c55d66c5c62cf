"""Which steps are due: every so many, and always the last; a trainer that jumps over several gets one point for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import ConfigError
from trainer_integration.schedule import Due, Schedule


def due_steps(schedule: Schedule, steps: range) -> list[int]:
    return [due.step for step in steps if (due := schedule.due(step))]


def test_every_so_many_steps_are_due() -> None:
    assert due_steps(Schedule(10), range(1, 35)) == [10, 20, 30]
    assert due_steps(Schedule(1), range(1, 4)) == [1, 2, 3]


def test_a_run_that_begins_elsewhere_keeps_the_multiples() -> None:
    assert due_steps(Schedule(10, start=17), range(18, 41)) == [20, 30, 40]
    assert due_steps(Schedule(10, start=20), range(21, 31)) == [30]


def test_the_last_step_is_always_due() -> None:
    schedule = Schedule(10)
    assert schedule.due(10) == Due(step=10, missed=())
    assert schedule.due(13, final=True) == Due(step=13, missed=())


def test_the_same_step_is_due_once_even_as_the_final_one() -> None:
    schedule = Schedule(10)
    assert schedule.due(10)
    assert schedule.due(10) is None
    assert schedule.due(10, final=True) is None


def test_a_jump_gives_one_point_that_names_the_missed_ones() -> None:
    schedule = Schedule(10)
    assert schedule.due(35) == Due(step=35, missed=(10, 20, 30))
    assert schedule.due(40) == Due(step=40, missed=())
    assert schedule.due(60) == Due(step=60, missed=(50,))
    assert schedule.due(71, final=True) == Due(step=71, missed=(70,))


def test_what_was_due_is_due_again_after_the_trainer_went_back() -> None:
    schedule = Schedule(10)
    assert due_steps(schedule, range(1, 31)) == [10, 20, 30]
    assert due_steps(schedule, range(16, 36)) == [20, 30]
    assert schedule.due(10) == Due(step=10, missed=())
    assert schedule.due(13, final=True) == Due(step=13, missed=())


def test_an_earlier_step_that_got_a_point_of_its_own_is_no_way_back() -> None:
    schedule = Schedule(10)
    assert due_steps(schedule, range(1, 36)) == [10, 20, 30]
    schedule.mark(10)
    assert schedule.due(40) == Due(step=40, missed=())


def test_a_marked_step_has_its_point_already() -> None:
    schedule = Schedule(10)
    schedule.mark(0)
    assert schedule.due(0, final=True) is None
    schedule.mark(10)
    assert schedule.due(10) is None


@pytest.mark.parametrize("every", [0, -1])
def test_an_interval_below_one_is_refused(every: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Schedule(every)


@given(st.integers(1, 20), st.integers(0, 50), st.lists(st.integers(1, 30), max_size=30))
def test_every_multiple_is_evaluated_or_missed_exactly_once(every: int, start: int, jumps: list[int]) -> None:
    schedule, step, accounted = Schedule(every, start=start), start, []
    for jump in jumps:
        step += jump
        if due := schedule.due(step):
            accounted += [*due.missed, due.step]
    multiples = [n for n in range(start + 1, step + 1) if n % every == 0]
    assert sorted(n for n in accounted if n % every == 0) == multiples
    assert len(accounted) == len(set(accounted))

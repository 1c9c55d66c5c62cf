"""Whoever waits for a fleet gets it in turn: points of a live run before re-evaluation, among equals the longest waiting."""

from __future__ import annotations

import pytest

from infra.fleet.turns import STALE_S, Turns

LIVE, SAVED = 0, 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 0.1  # every look is a little later
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_points_of_live_runs_go_before_re_evaluation_and_each_kind_in_the_order_in_which_it_came(clock: Clock) -> None:
    turns = Turns(clock)
    came = [("saved 1", SAVED), ("trainer a", LIVE), ("saved 2", SAVED), ("trainer b", LIVE)]
    order = []
    for holder, priority in came:
        turns.ask(holder, priority)
    waiting = dict(came)
    while waiting:
        [first] = {turns.ask(holder, priority) for holder, priority in waiting.items()}
        turns.went(first)
        del waiting[first]
        order.append(first)
    assert order == ["trainer a", "trainer b", "saved 1", "saved 2"]


def test_one_that_asks_no_more_holds_up_nobody(clock: Clock) -> None:
    turns = Turns(clock)
    turns.ask("dead", LIVE)
    assert turns.ask("next", LIVE) == "dead"
    clock.now += STALE_S
    assert turns.ask("next", LIVE) == "next"


def test_one_that_keeps_asking_keeps_its_place(clock: Clock) -> None:
    turns = Turns(clock)
    turns.ask("first", SAVED)
    turns.ask("second", SAVED)
    for _ in range(20):
        clock.now += STALE_S / 2
        assert turns.ask("second", SAVED) == turns.ask("first", SAVED) == "first"

"""A grader can hang, crash or raise, and only its own sample is the worse for it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from infra.datasets import load_problems
from infra.errors import GraderError, GraderTimeout
from infra.grading import GraderPool, extract, grade
from infra.model import Problem
from tests.infra.examples import dataset
from tests.infra.graders import GYM, HANGING, HANGS_ON, NUMERIC, PROBLEM, RAISING, UNGRADABLE

DEADLINE_S = 0.5


@pytest.fixture
def pool() -> Iterator[GraderPool]:
    with GraderPool(deadline_s=DEADLINE_S) as pool:
        yield pool


@pytest.mark.parametrize(
    ("grader", "answer", "response", "reward"),
    [
        ("exact", "7", " 7\n", 1.0),
        ("exact", "7", "7.", 0.0),
        ("exact", "a", "A", 0.0),
        ("contains", "Seven", "it is seven, yes", 1.0),
        ("contains", "7", "8", 0.0),
        ("numeric", "7", "7.0", 1.0),
        ("numeric", "1,234.5", "1234.50", 1.0),
        ("numeric", "7", "7.0000001", 0.0),
        ("numeric", "0", "-0.0", 1.0),
        ("numeric", "7", "seven", 0.0),
        ("numeric", "7", "nan", 0.0),
        ("numeric", "7", "inf", 0.0),
        ("numeric", "7", "-1e999", 0.0),
    ],
)
def test_an_answer_is_graded_right_or_wrong(grader: str, answer: str, response: str, reward: float) -> None:
    problem = Problem(id="p", prompt="", answer=answer, entry={})
    assert grade(dataset(grader=grader), problem, response).reward == reward


def test_a_reasoning_gym_problem_is_graded_by_its_own_family() -> None:
    problem, other = load_problems(GYM)
    assert grade(GYM, problem, problem.answer).reward == 1.0
    assert grade(GYM, problem, other.answer + "1").reward < 1.0


@pytest.mark.parametrize(
    ("pattern", "response", "answer"),
    [
        (None, " all of it ", "all of it"),
        (None, "  ", None),
        (r"\d+", "x 12 34", "12"),
        (r"= (\d+)", "x = 5", "5"),
        (r"\d+", "none", None),
        (r"a(b)?", "a", None),
    ],
)
def test_the_answer_is_what_the_pattern_finds_first(pattern: str | None, response: str, answer: str | None) -> None:
    assert extract(dataset(answer_pattern=pattern), response) == answer


def test_a_response_without_an_answer_has_reward_zero_and_no_answer() -> None:
    given = grade(dataset(answer_pattern=r"\d+"), PROBLEM, "I do not know")
    assert (given.answer, given.reward) == (None, 0.0)


async def test_a_hanging_grader_is_killed_at_its_deadline_and_the_others_are_graded(pool: GraderPool) -> None:
    await pool.grade(NUMERIC, PROBLEM, "7")  # the worker is up
    started = time.monotonic()
    hanging = asyncio.create_task(pool.grade(HANGING, PROBLEM, HANGS_ON))
    others = [asyncio.create_task(pool.grade(HANGING, PROBLEM, "7")) for _ in range(3)]
    with pytest.raises(GraderTimeout, match="no grade for p within 0.5 s"):
        await hanging
    assert time.monotonic() - started < DEADLINE_S + 2
    assert [given.reward for given in await asyncio.gather(*others)] == [1.0] * 3


async def test_a_crash_of_the_worker_is_an_error_of_its_sample_alone(pool: GraderPool) -> None:
    before = workers()
    await pool.grade(NUMERIC, PROBLEM, "7")
    hanging = asyncio.create_task(pool.grade(HANGING, PROBLEM, HANGS_ON))
    await asyncio.sleep(0.2)
    (worker,) = workers() - before
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(GraderError) as caught:
        await hanging
    assert not isinstance(caught.value, GraderTimeout)
    assert (await pool.grade(NUMERIC, PROBLEM, "7")).reward == 1.0


async def test_a_raising_grader_is_a_grader_error_that_names_problem_and_cause(pool: GraderPool) -> None:
    with pytest.raises(GraderError, match="q: ValueError") as caught:
        await pool.grade(RAISING, UNGRADABLE, "7")
    assert not isinstance(caught.value, GraderTimeout)
    assert (await pool.grade(NUMERIC, PROBLEM, "7")).reward == 1.0


async def test_megabytes_and_lone_surrogates_reach_the_grader(pool: GraderPool) -> None:
    response = "\ud800\0" + "x" * 2_000_000 + " 7"
    assert (await pool.grade(dataset(grader="numeric", answer_pattern=r"\d+"), PROBLEM, response)).reward == 1.0


def workers() -> set[int]:
    """Processes of this one's grader pools: the children of the fork server."""
    found = psutil.Process().children(recursive=True)
    return {child.pid for child in found if any("forkserver" in word for word in child.cmdline())}

"""A grader can hang, crash or raise, and only its own sample is the worse for it.

Extraction (a user's regular expression) and grading run in worker processes that are killed at their deadline. A sample
whose grade is not known has no reward; zero is only for an answer that was graded wrong, or that the model did not give.
"""

from __future__ import annotations

import asyncio
import functools
import math
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from infra.errors import GraderError, GraderTimeout
from infra.model import DatasetSpec, Problem, ReasoningGymSource

GRADE_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """`answer` is what was extracted, None if the response holds no answer (its reward is 0)."""

    answer: str | None
    reward: float


def grade(spec: DatasetSpec, problem: Problem, response: str) -> Grade:
    """Runs in a worker. Rewards are in [0, 1]; whatever a grader raises passes through."""
    answer = extract(spec, response)
    if answer is None:
        return Grade(answer=None, reward=0.0)
    return Grade(answer=answer, reward=_GRADERS[spec.grader](spec, problem, answer))


def extract(spec: DatasetSpec, response: str) -> str | None:
    """The answer within a response: the whole of it, or what `answer_pattern` finds first."""
    if spec.answer_pattern is None:
        return response.strip() or None
    found = re.search(spec.answer_pattern, response)
    if found is None:
        return None
    return found.group(1 if found.re.groups else 0)


def _exact(spec: DatasetSpec, problem: Problem, answer: str) -> float:
    return float(answer.strip() == problem.answer.strip())


def _contains(spec: DatasetSpec, problem: Problem, answer: str) -> float:
    return float(problem.answer.strip().casefold() in answer.casefold())


def _numeric(spec: DatasetSpec, problem: Problem, answer: str) -> float:
    try:
        got = float(answer.replace(",", ""))
    except ValueError:
        return 0.0
    return float(math.isclose(got, float(problem.answer.replace(",", "")), rel_tol=1e-9, abs_tol=1e-9))


def _reasoning_gym(spec: DatasetSpec, problem: Problem, answer: str) -> float:
    if not isinstance(spec.source, ReasoningGymSource):
        raise TypeError("the reasoning_gym grader needs a reasoning_gym source")
    return float(_scorer(spec.source.reasoning_gym)(answer=answer, entry=problem.entry))


@functools.cache
def _scorer(family: str) -> Callable[..., float]:
    import reasoning_gym

    scorer: Callable[..., float] = reasoning_gym.get_score_answer_fn(family)
    return scorer


_GRADERS: dict[str, Callable[[DatasetSpec, Problem, str], float]] = {
    "exact": _exact,
    "contains": _contains,
    "numeric": _numeric,
    "reasoning_gym": _reasoning_gym,
}


class GraderPool:
    """Worker processes that grade; use as a context manager."""

    def __init__(self, workers: int = 1, deadline_s: float = GRADE_DEADLINE_S) -> None:
        from pebble import ProcessPool

        self.deadline_s = deadline_s
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # a worker that was killed is replaced without importing all this again
        self._pool: Any = ProcessPool(max_workers=workers, context=context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.stop()
        self._pool.join()

    async def grade(self, spec: DatasetSpec, problem: Problem, response: str) -> Grade:
        """Raises GraderTimeout (the worker has been killed) or GraderError with what the grader raised."""
        future = self._pool.schedule(grade, args=[spec, problem, response], timeout=self.deadline_s)
        try:
            result: Grade = await asyncio.wrap_future(future)
        except (TimeoutError, FutureTimeout):
            raise GraderTimeout(f"no grade for {problem.id} within {self.deadline_s:g} s") from None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise GraderError(f"{problem.id}: {type(error).__name__}: {error}") from error
        return result

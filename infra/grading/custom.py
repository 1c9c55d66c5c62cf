"""A user's own function grades; what it gives is a reward, or it is an error of that sample."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from infra.functions import function_of, parameters_of
from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import CustomGrader

GIVEN = ("prompt", "response", "answer", "row")


def custom(settings: CustomGrader, spec: DatasetSpec) -> Score:
    """Raises ConfigError for a function that is not there, or asks for what a grader is not given."""
    function = function_of(settings.function, "grader")
    wanted = parameters_of(function, GIVEN, "grader", settings.function)

    def score(problem: Problem, answer: str) -> float | None:
        given = {"prompt": problem.prompt, "response": answer, "answer": problem.answer, "row": problem.entry}
        result = function(**{name: given[name] for name in wanted})
        if inspect.isawaitable(result):
            import asyncio  # most workers do without

            result = asyncio.run(_awaited(result))
        return reward_in(result, settings.reward_key)

    return score


def reward_in(result: Any, key: str) -> float | None:
    """A number or bool, or what a mapping has under `key`. Raises KeyError, TypeError."""
    if isinstance(result, Mapping):
        if key not in result:
            raise KeyError(f"the grade has no {key!r}; its keys: {', '.join(map(str, result))}")
        result = result[key]
    if result is None:
        return None
    if not hasattr(result, "__float__"):
        raise TypeError(f"a grade is a number, a bool, or a mapping with {key!r}, not {type(result).__name__}: {result!r:.80}")
    return float(result)


async def _awaited(result: Any) -> Any:
    return await result

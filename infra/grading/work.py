"""What a worker is asked to do: it is made ready once, which may import for seconds, and then does each item."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from infra.grading.answers import Grade, extract, without_thinking
from infra.grading.registry import load
from infra.model import DatasetSpec, Problem
from infra.model.graders import JudgeGrader


class Work(Protocol):
    """Can be pickled, and so can its items and results."""

    def prepare(self) -> Callable[[Any], Any]: ...


@dataclass(frozen=True, slots=True)
class Grading:
    """(Problem, response) -> Grade. Rewards are what the grader says; whatever it raises passes through."""

    spec: DatasetSpec

    def prepare(self) -> Callable[[tuple[Problem, str]], Grade]:
        score = load(self.spec)

        def grade(item: tuple[Problem, str]) -> Grade:
            problem, response = item
            answer = extract(self.spec, response)
            reward = None if answer is None else score(problem, answer)
            return Grade(answer=None, reward=0.0) if reward is None else Grade(answer=answer, reward=reward)

        return grade


@dataclass(frozen=True, slots=True)
class Loading:
    """Anything -> None, once the grader has been loaded: whether it can be, and why not."""

    spec: DatasetSpec

    def prepare(self) -> Callable[[None], None]:
        load(self.spec)
        return lambda nothing: nothing


@dataclass(frozen=True, slots=True)
class Extraction:
    """response -> answer or None, for graders that are elsewhere."""

    spec: DatasetSpec

    def prepare(self) -> Callable[[str], str | None]:
        return lambda response: extract(self.spec, response)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's text -> the grade in it. What it says while it thinks is none. Raises ValueError without a grade."""

    settings: JudgeGrader

    def prepare(self) -> Callable[[str], float]:
        def read(text: str) -> float:
            said = without_thinking(text, ("<think>", "</think>"))
            found = [match.group(1) for match in re.finditer(self.settings.verdict_pattern, said)]
            if not found:
                raise ValueError(f"the judge gave no verdict: {said[-200:]!r}")
            return float(found[-1]) / self.settings.highest

        return read


def grade(spec: DatasetSpec, problem: Problem, response: str) -> Grade:
    """One grade in this process, which it may hang or end: for tests and measurements."""
    return Grading(spec).prepare()((problem, response))

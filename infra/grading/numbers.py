"""An answer that is the row's number is right, however it is written; one that is no number is wrong."""

from __future__ import annotations

import math

from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import NumericGrader


def numeric(settings: NumericGrader, spec: DatasetSpec) -> Score:
    def score(problem: Problem, answer: str) -> float:
        expected = float(_plain(problem.answer))
        if not math.isfinite(expected):
            raise ValueError(f"the row's answer {problem.answer!r} is no finite number")
        try:
            got = float(_plain(answer))
        except ValueError:
            return 0.0
        tolerance = max(settings.rel_tol * abs(expected), settings.abs_tol)
        return float(abs(got - expected) <= tolerance)

    return score


def _plain(text: str) -> str:
    return text.replace(",", "")

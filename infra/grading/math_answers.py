"""Mathematical answers are compared by value, by `math-verify`, and a comparison that does not end has no grade.

The package's own time limits are off: they raise an alarm in the main thread, which code in C does not hear, and take what
they cut off for wrong. Here the worker is killed at its deadline, and the sample has no reward.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import MathGrader

DELIMITERS = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")  # `\$36` has none, and an environment is none


def math(settings: MathGrader, spec: DatasetSpec) -> Score:
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off

    def score(problem: Problem, answer: str) -> float | None:
        expected = _parsed(_delimited(problem.answer))
        if not expected:
            raise ValueError(f"the row's answer {problem.answer!r} can't be read as mathematics")
        got = _parsed(answer)
        if not got:
            return None
        same = verify(
            expected, got, float_rounding=settings.digits, strict=settings.strict, timeout_seconds=None, raise_on_error=True
        )
        return float(same)

    return score


def _delimited(answer: str) -> str:
    """Without delimiters, `3\\sqrt{2}` would be read as 3."""
    return answer if DELIMITERS.search(answer) else f"\\boxed{{{answer}}}"


def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    found: list[Any] = parse(text, parsing_timeout=None, raise_on_error=True)
    return found

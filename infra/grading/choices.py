"""A multiple choice is read as the letter that the answer settles on: a boxed one, a named one, or one that stands alone."""

from __future__ import annotations

import re

from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import MultipleChoiceGrader

# In this order; of several matches of one, the last: a model that changes its mind says so later.
FORMS = (
    r"\\boxed\{{\s*(?:\\text\w*\{{)?\s*\(?([{upper}{lower}])\)?\s*\}}",
    r"(?i:\b(?:answer|choice|option)\b(?:\s+is)?\s*[:=]?)\s*[*_]*\(?([{upper}])\b",
    r"(?i:\b(?:answer|choice|option)\b(?:\s+is\b|\s*[:=]))\s*[*_]*\(?([{upper}{lower}])\b(?!')",
    r"\(([{upper}])\)",
    r"(?m:^)[\s*_]*\(?([{upper}{lower}])[).:]?[\s*_.]*(?m:$)",
    r"(?m:^)[\s*_]*([{upper}])[).:]\s",
)


def multiple_choice(settings: MultipleChoiceGrader, spec: DatasetSpec) -> Score:
    def score(problem: Problem, answer: str) -> float | None:
        expected = problem.answer.strip().strip("().").upper()
        if len(expected) != 1 or expected not in settings.choices:
            raise ValueError(f"the row's answer {problem.answer!r} is none of the choices {settings.choices}")
        got = letter_of(answer, settings.choices)
        return None if got is None else float(got == expected)

    return score


def letter_of(answer: str, choices: str) -> str | None:
    """One of `choices`, or None if the answer names none."""
    for form in FORMS:
        pattern = form.format(upper=choices, lower=choices.lower())
        if found := re.findall(pattern, answer):
            return str(found[-1]).upper()
    return None

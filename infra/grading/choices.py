"""A multiple choice is read as the letter that the answer settles on: a boxed one, a named one, or one that stands alone."""

from __future__ import annotations

import re

from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import MultipleChoiceGrader

# What is written around a letter without being part of it: emphasis, code and mathematics.
MARKUP = re.compile(r"[*_`$]|\\[()\[\]]|\\(?:text|math)\w*\{\s*\(?(\w)\)?\s*\}")
# A letter that is a word as well begins no sentence: "answer: A detailed look shows ...".
_LETTER = r"\(?([{upper}{lower}])\b(?!')(?!\s+(?!because\b|since\b|as\b|and\b|but\b|for\b|due\b|which\b|where\b)[a-z])"
_IS = r"\s+(?i:is|are|was|would\s+be|should\s+be|must\s+be)\b(?:\s*:)?|\s*[:=]"
# In this order; of several matches of one, the last: a model that changes its mind says so later.
FORMS = (
    r"\\boxed\{{\s*\(?([{upper}{lower}])\)?\s*\}}",
    rf"\b(?i:answer|choice|option|one)(?:{_IS})\s*(?i:(?:option|choice)\s+)?{_LETTER}",
    r"\b(?i:answer)\s+\(?([{upper}])\b(?!\s+[a-z])",
    r"\(([{upper}])\)",
    r"(?m:^)\s*\(?([{upper}{lower}])[).:]?[\s.]*(?m:$)",
    r"(?m:^)\s*([{upper}])[).:]\s",
    r"\b(?i:option|choice)\s+\(?([{upper}])\b",
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
    plain = MARKUP.sub(lambda found: found[1] or "", answer)
    for form in FORMS:
        pattern = form.format(upper=choices, lower=choices.lower())
        if found := re.findall(pattern, plain):
            return str(found[-1]).upper()
    return None

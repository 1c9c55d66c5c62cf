"""A multiple choice is read as the letter that the answer settles on: a boxed one, a named one, or one that stands alone."""

from __future__ import annotations

import re

from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import MultipleChoiceGrader

# What is written around a letter without being part of it: emphasis, code and mathematics.
MARKUP = re.compile(r"[*_`$]|\\[()\[\]]|\\(?:text|math)\w*\{\s*\(?(\w)\)?\s*\}")
# A letter that is a word as well begins no sentence: "answer: A detailed look shows ...".
_GOES_ON = "and|as|because|but|by|due|for|if|in|is|or|since|so|that|when|where|which|with"
_NO_WORD = rf"(?!(?i:[ai])\s+(?!(?:{_GOES_ON})\b)[a-z])"
_NAMED = r"(?i:answer|choice|option|(?:best|correct|right)\s+one)"
_IS = r"(?:\s+(?i:is|are|was|would\s+be|should\s+be|must\s+be)\b(?:\s*:)?|\s*[:=])"
_SPACE = r"[^\S\n]*"
_SO = r"(?:(?i:therefore|thus|hence|clearly|then)\b,?\s*)?"
_OPENS = r"[\"'\[<(]*"
# Not "when I choose A", nor "I choose A = 3".
_BEGINS = r"(?:(?m:^)[^\S\n]*|[.!?:;,]\s+|\b(?i:so|thus|therefore|hence|then|finally),?\s+)"
_ENDS = r"(?=[\"'\]>)]*\s*(?:[.,;!\n]|\Z)|\s+(?:because|since|as|for)\b)"
# In this order; of several matches of one, the last: a model that changes its mind says so later.
FORMS = (
    r"\\boxed\{{\s*(?:\\(?:text|math)\w*\{{\s*)?\(?([{upper}{lower}])\)?\s*(?:\}}|[.):]\s)",
    rf"\b{_NAMED}{_IS}\s*{_SO}(?i:(?:option|choice)\s+)?{_OPENS}{_NO_WORD}([{{upper}}{{lower}}])\b(?!'\w)",
    rf"{_BEGINS}I(?i:'d|'ll|\s+will)?\s+(?i:choose|pick|select|go\s+with)\s+(?i:(?:option|choice)\s+)?{_OPENS}([{{upper}}]){_ENDS}",
    rf"\b(?i:answer)\s+\(?{_NO_WORD}([{{upper}}])\b",
    r"\(([{upper}])\)",
    rf"(?m:^){_SPACE}\(?([{{upper}}{{lower}}])[).:]?[^\S\n]*\.?{_SPACE}(?m:$)",
    rf"(?m:^){_SPACE}([{{upper}}])[).:]\s",
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

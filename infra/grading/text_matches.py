"""Two texts are compared as texts: equal, contained, equal once normalised, overlapping, or matched by a pattern."""

from __future__ import annotations

import re
import string
from collections import Counter

from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import ContainsGrader, ExactGrader, F1Grader, NormalisedGrader, RegexGrader


def exact(settings: ExactGrader, spec: DatasetSpec) -> Score:
    return lambda problem, answer: float(answer.strip() == problem.answer.strip())


def contains(settings: ContainsGrader, spec: DatasetSpec) -> Score:
    return lambda problem, answer: float(_expected(problem).strip().casefold() in answer.casefold())


def normalised(settings: NormalisedGrader, spec: DatasetSpec) -> Score:
    """What has no word left once it is normalised, such as a sign, is compared as it is."""

    def score(problem: Problem, answer: str) -> float:
        got, expected = words_of(answer), words_of(problem.answer)
        return float(got == expected if got or expected else answer.strip() == problem.answer.strip())

    return score


def f1(settings: F1Grader, spec: DatasetSpec) -> Score:
    return lambda problem, answer: f1_of(words_of(answer), words_of(problem.answer))


def regex(settings: RegexGrader, spec: DatasetSpec) -> Score:
    flags = re.IGNORECASE if settings.ignore_case else 0

    def score(problem: Problem, answer: str) -> float:
        pattern = re.compile(_expected(problem) if settings.pattern is None else settings.pattern, flags)
        return float((pattern.fullmatch if settings.whole else pattern.search)(answer) is not None)

    return score


def _expected(problem: Problem) -> str:
    """Raises ValueError for an empty one, which is in every answer."""
    if not problem.answer.strip():
        raise ValueError("the row's answer is empty, which is in every answer")
    return problem.answer


def words_of(text: str) -> list[str]:
    """Lower case, without punctuation and articles, split at white space.

    Source: `normalize_answer` of SQuAD's evaluation script, https://rajpurkar.github.io/SQuAD-explorer/
    """
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def f1_of(got: list[str], expected: list[str]) -> float:
    """2PR / (P + R), where P is the share of `got` that is also in `expected`, word by word, and R the reverse.

    Source: `f1_score` of SQuAD's evaluation script (Rajpurkar et al., arXiv:1606.05250, section 6.1). Where either has no
    word left, both must have none, as version 2.0 of the script has it.
    """
    if not got or not expected:
        return float(got == expected)
    common = (Counter(got) & Counter(expected)).total()
    if not common:
        return 0.0
    precision, recall = common / len(got), common / len(expected)
    return 2 * precision * recall / (precision + recall)

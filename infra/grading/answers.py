"""The answer within a response: never out of reasoning, whether it was finished or cut off."""

from __future__ import annotations

import re
from dataclasses import dataclass

from infra.model import DatasetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """`answer` is what was extracted, None if the response holds no answer (its reward is 0)."""

    answer: str | None
    reward: float


def extract(spec: DatasetSpec, response: str) -> str | None:
    """The answer: all of what was not reasoning, or what `answer_pattern` finds in it first."""
    said = without_thinking(response, spec.think_markers)
    if spec.answer_pattern is None:
        return said.strip() or None
    found = re.search(spec.answer_pattern, said)
    if found is None:
        return None
    return found.group(1 if found.re.groups else 0)


def without_thinking(response: str, markers: tuple[str, str] | None) -> str:
    """`response` without what stands between `markers`. A block that is never closed goes on to the end.

    A closing marker before any opening one ends a block that the prompt opened, as many chat templates do.
    """
    if markers is None:
        return response
    opens, closes = markers
    said: list[str] = []
    thinking = 0 <= response.find(closes) < _found(response, opens)
    while response:
        part, marker, response = response.partition(closes if thinking else opens)
        if not thinking:
            said.append(part)
        thinking = bool(marker) and not thinking
    return "".join(said)


def _found(text: str, marker: str) -> int:
    place = text.find(marker)
    return place if place >= 0 else len(text)


def opened_by_prompt(prompt: str, response: str, markers: tuple[str, str] | None) -> str:
    """`response`, with the opening marker that the rendered prompt ended with put back before it."""
    return markers[0] + response if markers is not None and prompt.rstrip().endswith(markers[0]) else response

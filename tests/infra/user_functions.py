"""What a user's module may hold: functions that give rows, as `function: tests.infra.user_functions:NAME` names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def additions(count: int = 3, offset: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"prompt": f"{number + offset}+1=", "answer": number + offset + 1}


def listed() -> list[dict[str, Any]]:
    return [{"id": "a", "prompt": "1+1=", "answer": "2"}]


def broken_at_the_third() -> Iterator[dict[str, Any]]:
    yield from additions(2)
    raise ZeroDivisionError("no third row")


def mixed() -> Iterator[Any]:
    yield from additions(1)
    yield "no mapping"
    yield {"prompt": "no answer"}


def one_text() -> str:
    return "rows"


NOT_A_FUNCTION = 3

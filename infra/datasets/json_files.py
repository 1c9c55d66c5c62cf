"""Rows of JSON files: one object a line, of which a line is read at a time, or an array of objects."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path
from typing import Any

from infra.datasets.rows import Row, Rows, row_of
from infra.errors import DatasetError

_SPACE = re.compile(r"[ \t\r\n]*")


def json_lines(path: Path, called: str) -> Rows:
    """Blank lines are passed over. Raises DatasetError for a file that is not there."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if text.strip():
                    yield _line(text, called, number)
    except FileNotFoundError:
        raise DatasetError("file does not exist", path=called) from None


def json_rows(path: Path, called: str) -> Rows:
    """An array, whose text is in memory and whose rows are read one at a time; lines of objects, if it begins with one.

    Raises DatasetError where the text stops being JSON: what follows is no row any more.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(f"is not UTF-8: {error}", path=called) from None
    place = _after_space(text, 0)
    if text[place : place + 1] == "{":
        yield from json_lines(path, called)
    elif text[place : place + 1] == "[":
        yield from _entries(text, place + 1, called)
    elif text[place:]:
        raise DatasetError("must be an array of JSON objects, or an object a line", path=called, line=1)


def _line(line: bytes, called: str, number: int) -> Row | DatasetError:
    try:
        return row_of(json.loads(line.decode()), called, number)
    except UnicodeDecodeError as error:
        return DatasetError(f"is not UTF-8: {error}", path=called, line=number)
    except (ValueError, RecursionError) as error:
        return DatasetError(f"is not JSON: {error}", path=called, line=number)


def _entries(text: str, place: int, called: str) -> Rows:
    """Of an array whose bracket has been opened before `place`."""
    line, counted = 1, 0
    place = _after_space(text, place)
    closed = text[place : place + 1] == "]"
    while not closed:
        line, counted = line + text.count("\n", counted, place), place
        value, place = _decoded(text, place, called, line)
        yield row_of(value, called, line)
        place = _after_space(text, place)
        closed = text[place : place + 1] == "]"
        if not closed:
            if text[place : place + 1] != ",":
                line += text.count("\n", counted, place)
                raise DatasetError("is not JSON: expecting ',' or ']' after a row", path=called, line=line)
            place = _after_space(text, place + 1)
    if _after_space(text, place + 1) < len(text):
        line += text.count("\n", counted, place)
        raise DatasetError("is not JSON: there is more after the array", path=called, line=line)


def _decoded(text: str, place: int, called: str, line: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, place)
    except json.JSONDecodeError as error:
        raise DatasetError(f"is not JSON: {error.msg}", path=called, line=error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"is not JSON: {error}", path=called, line=line) from None


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place

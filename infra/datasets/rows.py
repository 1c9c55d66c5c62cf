"""What every source gives: rows in order, each with its place; one that can't be read is in the row's place, not raised.

So whoever reads decides whether a bad row ends the reading. What spoils a whole file is raised.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from infra.errors import DatasetError


@dataclass(frozen=True, slots=True)
class Row:
    """`fields` without those that have no value; `line` counts from 1, in rows where `unit` says so."""

    fields: dict[str, Any]
    path: str
    line: int
    unit: str = "line"

    def bad(self, message: str) -> DatasetError:
        return DatasetError(message, path=self.path, line=self.line, unit=self.unit)


Rows = Generator[Row | DatasetError, None, None]


def row_of(value: Any, path: str, line: int, unit: str = "line") -> Row | DatasetError:
    if not isinstance(value, dict):
        kind = {"NoneType": "null"}.get(type(value).__name__, type(value).__name__)
        return DatasetError(f"must be a JSON object, not {kind}", path=path, line=line, unit=unit)
    return Row({str(key): held for key, held in value.items() if held is not None}, path, line, unit)

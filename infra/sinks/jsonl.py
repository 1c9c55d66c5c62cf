"""A run as JSON lines, one a point, by step: made anew from the records each time, as if it had been made at once."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from infra import local_files
from infra.model import SkippedPoint
from infra.sinks import Place
from infra.sinks.metrics import TrackedPoint


class JsonLines:
    def __init__(self, place: Place) -> None:
        self.file = place.folder / "jsonl" / f"{place.run}.jsonl"

    @property
    def target(self) -> str:
        return f"{socket.gethostname()}:{self.file}"

    def write(self, points: Sequence[TrackedPoint]) -> int:
        before = _keys_in(self.file)
        new = sum(point.key not in before for point in points)
        if new:
            local_files.write(self.file, "".join(json.dumps(_line(point)) + "\n" for point in points).encode())
        return new


def _line(point: TrackedPoint) -> dict[str, Any]:
    record = point.record
    skipped = {"reason": record.reason, "message": record.message} if isinstance(record, SkippedPoint) else {}
    return {
        "point": point.key,
        "run": record.point.run,
        "step": point.step,
        "attempt": record.point.attempt,
        "suite": record.suite,
        "kind": record.kind,
        **skipped,
        "finished_at": record.finished_at,
        "metrics": point.metrics,
    }


def _keys_in(file: Path) -> set[str]:
    """Of the lines that are ours; a file that is not there, or holds something else, has none."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        return {json.loads(line)["point"] for line in file.read_bytes().splitlines()}
    return set()

"""The record of a point is written once, in the store, and everything people see is made from it.

Each (run, point, suite) has exactly one terminal record: a report or a skip. Layout below the store's root:
`runs/RUN/points/POINT/SUITE/record.json`, samples beside it, and `runs/RUN/progress/ATTEMPT.json`, the step that this start of
the trainer is at.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from io import BytesIO

from pydantic import TypeAdapter

from infra.errors import AlreadyExists
from infra.model import EvalPoint, EvalReport, PointRecord, Sample, SkippedPoint
from infra.store import Store

logger = logging.getLogger(__name__)
_RECORD: TypeAdapter[EvalReport | SkippedPoint] = TypeAdapter(PointRecord)
_SAMPLE = TypeAdapter(Sample)


def point_prefix(point: EvalPoint, suite: str) -> str:
    return f"runs/{point.run}/points/{point.key}/{suite}"


def record_key(point: EvalPoint, suite: str) -> str:
    return f"{point_prefix(point, suite)}/record.json"


def commit(store: Store, record: EvalReport | SkippedPoint) -> EvalReport | SkippedPoint:
    """Writes the record unless the point has one; gives the one that counts, which is the first."""
    key = record_key(record.point, record.suite)
    try:
        store.create(key, _RECORD.dump_json(record, indent=1))
    except AlreadyExists:
        first = _RECORD.validate_json(store.read(key))
        logger.warning("%s, suite %s has a record already (%s): kept", record.point.name, record.suite, first.kind)
        return first
    return record


def find(store: Store, point: EvalPoint, suite: str) -> EvalReport | SkippedPoint | None:
    try:
        return _RECORD.validate_json(store.read(record_key(point, suite)))
    except FileNotFoundError:
        return None


def history(store: Store, run: str) -> list[EvalReport | SkippedPoint]:
    """All records of a run, by step, attempt and suite."""
    keys = [key for key in store.list(f"runs/{run}/points") if key.endswith("/record.json")]
    records = [_RECORD.validate_json(store.read(key)) for key in keys]
    return sorted(records, key=lambda record: (record.point.step, record.point.attempt, record.suite))


def runs(store: Store) -> list[str]:
    """Names of the runs that have a record."""
    return sorted({key.split("/")[1] for key in store.list("runs") if key.endswith("/record.json")})


def next_attempt(store: Store, run: str) -> int:
    """How often this run was started before; a conditional create gives each start a number of its own."""
    attempt = len(store.list(f"runs/{run}/starts"))
    while True:
        try:
            store.create(f"runs/{run}/starts/{attempt:06d}.json", json.dumps({"at": now(), "id": uuid.uuid4().hex}).encode())
        except AlreadyExists:
            attempt += 1
        else:
            return attempt


def write_samples(store: Store, point: EvalPoint, suite: str, dataset: str, samples: Iterable[Sample]) -> str:
    """JSON lines, one a sample; gives their URL."""
    key = f"{point_prefix(point, suite)}/samples/{dataset}.jsonl"
    store.write(key, "".join(json.dumps(asdict(sample)) + "\n" for sample in samples).encode())
    return store.url_of(key)


def read_samples(store: Store, point: EvalPoint, suite: str, dataset: str) -> Iterator[Sample]:
    """The samples that `write_samples` wrote. Raises FileNotFoundError without any, ValueError for a line that is none."""
    for line in BytesIO(store.read(f"{point_prefix(point, suite)}/samples/{dataset}.jsonl")):
        yield _SAMPLE.validate_json(line)


def write_progress(store: Store, run: str, attempt: int, step: int) -> None:
    """Where this start of the trainer is now; how late one of its points is, is counted from it."""
    store.write(_progress_key(run, attempt), json.dumps({"step": step, "at": now()}).encode())


def read_progress(store: Store, run: str, attempt: int) -> int | None:
    """The step that this start of the trainer was last known to be at; None if it has not said, or there was no trainer."""
    try:
        return int(json.loads(store.read(_progress_key(run, attempt)))["step"])
    except FileNotFoundError:
        return None


def _progress_key(run: str, attempt: int) -> str:
    return f"runs/{run}/progress/{attempt}.json"


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")

"""The record of a point is written once, in the store, and everything people see is made from it.

Each (run, point, suite) has exactly one terminal record: a report or a skip. Layout below the store's root:
`runs/RUN/points/POINT/SUITE/record.json`, samples beside it (`samples/DATASET/*.parquet`), `runs/RUN/sinks/...`, what was
written of the run to which sink, `runs/RUN/progress/ATTEMPT.json`, the step that this start of the trainer is at, and
`comparisons/SUITE/RUN.json`, the run's points of a suite in short, for comparisons of runs.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from infra.errors import AlreadyExists, ConfigError, RecordDamaged
from infra.model import EvalPoint, EvalReport, PointRecord, Sample, SkippedPoint
from infra.model.results import RECORD_FORMAT
from infra.store import Store

logger = logging.getLogger(__name__)
_RECORD: TypeAdapter[EvalReport | SkippedPoint] = TypeAdapter(PointRecord)
_SAMPLE = TypeAdapter(Sample)
_POINT = re.compile(r"step(?P<step>\d+)-a(?P<attempt>\d+)")


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
        first = _parsed(store, key)
        logger.warning("%s, suite %s has a record already (%s): kept", record.point.name, record.suite, first.kind)
        return first
    return record


def find(store: Store, point: EvalPoint, suite: str) -> EvalReport | SkippedPoint | None:
    key = record_key(point, suite)
    try:
        return _parsed(store, key)
    except FileNotFoundError:
        return None


def history(store: Store, run: str) -> list[EvalReport | SkippedPoint]:
    """All records of a run, by step, attempt and suite."""
    keys = [key for key in store.list(f"runs/{run}/points") if key.endswith("/record.json")]
    records = [_parsed(store, key) for key in keys]
    return sorted(records, key=lambda record: (record.point.step, record.point.attempt, record.suite))


def find_before(store: Store, point: EvalPoint, suite: str, at_most: int) -> list[EvalReport | SkippedPoint]:
    """The last attempt's record of the same suite at each of the last earlier steps of the run, newest first."""
    folder, end = f"runs/{point.run}/points/", f"/{suite}/record.json"
    last: dict[int, tuple[int, str]] = {}
    for key in store.list(folder[:-1]):
        named = _POINT.fullmatch(key.removeprefix(folder).removesuffix(end)) if key.endswith(end) else None
        if named is not None and int(named["step"]) < point.step:
            step, attempt = int(named["step"]), int(named["attempt"])
            last[step] = max(last.get(step, (-1, "")), (attempt, key))
    return [_parsed(store, key) for step in sorted(last, reverse=True)[:at_most] for _, key in [last[step]]]


def runs(store: Store) -> list[str]:
    """Names of the runs that have a record."""
    return sorted({key.split("/")[1] for key in store.list("runs") if key.endswith("/record.json")})


def _parsed(store: Store, key: str) -> EvalReport | SkippedPoint:
    """Raises FileNotFoundError without a record there, ConfigError for a format yet to come, RecordDamaged for what is none."""
    data = store.read(key)
    try:
        loaded = json.loads(data)
        written = loaded.get("format", RECORD_FORMAT) if isinstance(loaded, dict) else RECORD_FORMAT
        if written <= RECORD_FORMAT:
            return _RECORD.validate_json(data)
    except (ValueError, TypeError, RecursionError, ConfigError) as error:  # ConfigError: a name that no run can have, for one
        raise RecordDamaged(store.url_of(key), _fault(error)) from error
    raise ConfigError(f"{key} has format {written}; this Pinpoint reads format {RECORD_FORMAT}: upgrade it")


def _fault(error: Exception) -> str:
    """One line without what was in the file, and without pydantic's addresses."""
    if not isinstance(error, ValidationError):
        return str(error) or type(error).__name__
    first, count = error.errors(include_url=False, include_input=False, include_context=False)[0], error.error_count()
    place = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
    return f"{place}{first['msg']}" + (f", and {count - 1} more" if count > 1 else "")


def next_attempt(store: Store, run: str) -> int:
    """A number that no start of this run has had, higher than all; a conditional create gives each start one of its own."""
    numbers = (key.rpartition("/")[2].removesuffix(".json") for key in store.list(f"runs/{run}/starts"))
    attempt = max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)
    while not note_attempt(store, run, attempt):
        attempt += 1
    return attempt


def note_attempt(store: Store, run: str, attempt: int) -> bool:
    """Makes it the caller's, and every later one a higher one; False if somebody else has it."""
    try:
        store.create(f"runs/{run}/starts/{attempt:06d}.json", json.dumps({"at": now(), "id": uuid.uuid4().hex}).encode())
    except AlreadyExists:
        return False
    return True


def write_samples(store: Store, point: EvalPoint, suite: str, dataset: str, samples: Iterable[Sample]) -> str:
    """One Parquet file under a name of its own, whole or absent, that nobody writes again; gives its URL.

    A dataset that is run again, after a crash for one, writes another file: the report says which one it was made from.
    """
    from infra import sample_files  # a trainer, which writes skips, has no pyarrow

    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    key = f"{_samples_folder(point, suite)}{dataset}/{stamp}-{uuid.uuid4().hex[:8]}.parquet"
    with tempfile.TemporaryDirectory(prefix="pinpoint-samples-") as folder:
        path = Path(folder, "samples.parquet")
        sample_files.write(path, samples)
        store.upload(path, key)
    return store.url_of(key)


def read_samples(store: Store, point: EvalPoint, suite: str, dataset: str) -> Iterator[Sample]:
    """The samples that the point's report was made from or, as long as it has none, those that were written last.

    Raises FileNotFoundError without any, ValueError for a file, or a line of an older one, that can't be read.
    """
    yield from _samples_in(store, _samples_key(store, point, suite, dataset))


def samples_at(store: Store, location: str) -> Iterator[Sample]:
    """The samples at the `samples_location` of a report in this store; raises as `read_samples` does."""
    yield from _samples_in(store, location.removeprefix(f"{store.url}/"))


def _samples_key(store: Store, point: EvalPoint, suite: str, dataset: str) -> str:
    folder = _samples_folder(point, suite)
    record = find(store, point, suite)
    results = record.results if isinstance(record, EvalReport) else ()
    named = next((result.samples_location for result in results if result.dataset == dataset), "")
    if folder in named:  # by its end: a store that was moved has another URL
        return folder + named.rpartition(folder)[2]
    keys = [key for key in store.list(folder[:-1]) if key.startswith((f"{folder}{dataset}/", f"{folder}{dataset}.jsonl"))]
    if not keys:
        raise FileNotFoundError(store.url_of(f"{folder}{dataset}"))
    return max(keys, key=lambda key: (key.endswith(".parquet"), key))


def _samples_in(store: Store, key: str) -> Iterator[Sample]:
    if key.endswith(".jsonl"):  # as they were written before there were Parquet files
        for line in BytesIO(store.read(key)):
            yield _SAMPLE.validate_json(line)
        return
    from infra import sample_files

    with tempfile.TemporaryDirectory(prefix="pinpoint-samples-") as folder:
        path = store.local_path(key) or Path(folder, "samples.parquet")
        if not store.is_local:
            store.download(key, path)
        yield from sample_files.read(path)


def _samples_folder(point: EvalPoint, suite: str) -> str:
    return f"{point_prefix(point, suite)}/samples/"


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

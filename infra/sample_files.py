"""Samples as a Parquet file: a column a field, in row groups of bounded size, so that memory does not grow with their number.

Text is exact. What is no valid Unicode (half of a surrogate pair, which JSON can carry and Parquet can't) has '?' in its own
column and, for that row, the text itself as JSON in the column `exact`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from infra.model import Sample, SampleOutcome

FORMAT = 1  # columns may be added within a format
FORMAT_KEY = b"pinpoint.samples.format"
GROUP_CHARACTERS = 8 * 2**20
GROUP_ROWS = 8192
READ_ROWS = 256
_TYPES = {
    "str": pa.string(),
    "SampleOutcome": pa.string(),
    "int": pa.int64(),
    "float | None": pa.float64(),
    "tuple[str, ...]": pa.list_(pa.string()),
}
_TUPLES = {field.name for field in fields(Sample) if field.type == "tuple[str, ...]"}
_NAMES = [field.name for field in fields(Sample)]
SCHEMA = pa.schema(
    [*(pa.field(field.name, _TYPES[str(field.type)]) for field in fields(Sample)), pa.field("exact", pa.string())],
    metadata={FORMAT_KEY: str(FORMAT).encode()},
)


def write(path: Path, samples: Iterable[Sample]) -> None:
    """All samples, in their order; no more of them than a row group holds are in memory at once."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for rows in _groups(samples):
            writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))


def read(path: Path) -> Iterator[Sample]:
    """In the order in which they were written. Raises ValueError for a file that is torn, or of a format yet to come."""
    with pq.ParquetFile(path) as file:
        written = int((file.schema_arrow.metadata or {}).get(FORMAT_KEY, b"0"))
        if not 0 < written <= FORMAT:
            raise ValueError(f"{path.name} has samples of format {written}; this Pinpoint reads format {FORMAT}: upgrade it")
        for batch in file.iter_batches(batch_size=READ_ROWS):
            yield from map(_sample, batch.to_pylist())


def _groups(samples: Iterable[Sample]) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    characters = 0
    for sample in samples:
        rows.append(_row(sample))
        characters += len(sample.prompt) + len(sample.response) + len(sample.detail)
        if characters >= GROUP_CHARACTERS or len(rows) >= GROUP_ROWS:
            yield rows
            rows, characters = [], 0
    if rows:
        yield rows


def _row(sample: Sample) -> dict[str, Any]:
    row = {name: getattr(sample, name) for name in _NAMES}
    broken = {
        name: value for name, value in row.items() if name not in _TUPLES and isinstance(value, str) and not _valid(value)
    }
    broken |= {name: row[name] for name in _TUPLES if not all(map(_valid, row[name]))}
    shown = {name: _shown(value) for name, value in broken.items()}
    return {**row, **shown, "exact": json.dumps(broken) if broken else None}


def _sample(row: dict[str, Any]) -> Sample:
    exact = row.pop("exact", None)
    known = {name: row[name] for name in _NAMES if name in row} | (json.loads(exact) if exact else {})
    known |= {name: tuple(known[name]) for name in _TUPLES if name in known}
    return Sample(**{**known, "outcome": SampleOutcome(known["outcome"])})


def _valid(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: str | tuple[str, ...]) -> str | list[str]:
    return value.encode(errors="replace").decode() if isinstance(value, str) else [str(_shown(part)) for part in value]

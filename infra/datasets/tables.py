"""Rows of tables: CSV and TSV by the standard library, Parquet and Arrow by pyarrow, a batch in memory at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.datasets.rows import Row, Rows, row_of
from infra.errors import ConfigError, DatasetError

BATCH_ROWS = 500
LONGEST_CELL = 1 << 27
_ARROW_FILE = b"ARROW1"  # how the file format begins; what `datasets` writes is the stream format


def csv_rows(path: Path, called: str) -> Rows:
    return _separated(path, called, ",")


def tsv_rows(path: Path, called: str) -> Rows:
    return _separated(path, called, "\t")


def parquet_rows(path: Path, called: str) -> Rows:
    """Raises DatasetError for what is no Parquet file, ConfigError without pyarrow."""
    arrow = _pyarrow(called)
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from _batches(file.iter_batches(batch_size=BATCH_ROWS), called)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DatasetError(f"is not a Parquet file: {error}", path=called) from None


def arrow_rows(path: Path, called: str) -> Rows:
    """Both formats of Arrow. Raises as `parquet_rows`."""
    arrow = _pyarrow(called)
    try:
        with path.open("rb") as file:
            whole = file.read(len(_ARROW_FILE)) == _ARROW_FILE
        with arrow.memory_map(str(path)) as source:
            if whole:
                reader = arrow.ipc.open_file(source)
                yield from _batches((reader.get_batch(number) for number in range(reader.num_record_batches)), called)
            else:
                yield from _batches(arrow.ipc.open_stream(source), called)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DatasetError(f"is not an Arrow file: {error}", path=called) from None


def _separated(path: Path, called: str, delimiter: str) -> Rows:
    """The first row names the columns; all values are texts, and an empty one is no value."""
    csv.field_size_limit(LONGEST_CELL)
    line = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            names = _columns(next(reader, []), called)
            line = reader.line_num
            for cells in reader:
                if cells:
                    yield _cells(names, cells, called, line + 1)
                line = reader.line_num
    except UnicodeDecodeError as error:
        raise DatasetError(f"is not UTF-8: {error}", path=called) from None
    except csv.Error as error:
        raise DatasetError(f"is not CSV: {error}", path=called, line=line + 1) from None


def _columns(names: list[str], called: str) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DatasetError(f"has two columns named {twice!r}", path=called, line=1)
    return names


def _cells(names: list[str], cells: list[str], called: str, line: int) -> Row | DatasetError:
    if len(cells) != len(names):
        return DatasetError(f"has {len(cells)} cells where there are {len(names)} columns", path=called, line=line)
    return row_of({name: cell or None for name, cell in zip(names, cells, strict=True)}, called, line)


def _batches(batches: Iterator[Any], called: str) -> Rows:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for value in batch.slice(start, BATCH_ROWS).to_pylist():
                number += 1
                yield row_of(value, called, number, "row")


def _pyarrow(called: str) -> Any:
    try:
        import pyarrow.ipc
    except ImportError:
        raise ConfigError(f"{called} needs the package pyarrow: pip install 'pinpoint-eval[tables]'") from None
    return pyarrow

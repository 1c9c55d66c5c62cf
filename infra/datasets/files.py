"""Files of a dataset, wherever they are: on this machine, in object storage, named one by one, by pattern or by folder.

A name tells the format: `.json`, `.csv`, `.tsv`, `.parquet`, `.arrow`; all others hold one JSON object a line.
"""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.datasets.json_files import json_lines, json_rows
from infra.datasets.rows import Rows
from infra.datasets.saved_folders import saved_files
from infra.datasets.tables import arrow_rows, csv_rows, parquet_rows, tsv_rows
from infra.errors import DatasetError
from infra.store import Store, path_of, split_location

READERS: dict[str, Callable[[Path, str], Rows]] = {
    ".json": json_rows,
    ".csv": csv_rows,
    ".tsv": tsv_rows,
    ".parquet": parquet_rows,
    ".arrow": arrow_rows,
}
_PATTERN = re.compile(r"[*?]")


def file_rows(source: str, split: str | None) -> Rows:
    """Rows of all files that `source` names, by name; a file in object storage is fetched when its turn comes.

    Raises DatasetError for what is not there or can't be read, StoreError.
    """
    for path, called in _found(source):
        if path.is_dir():
            for file in saved_files(path, called, split):
                yield from arrow_rows(file, f"{called}/{file.relative_to(path)}")
        elif split is not None:
            raise DatasetError(f"is a file, so it has no split {split!r}: leave 'split' out", path=called)
        else:
            yield from READERS.get(path.suffix.lower(), json_lines)(path, called)


def is_remote(source: str) -> bool:
    return source.startswith("s3://")


def local_paths(source: str) -> list[Path]:
    """What a path, a file:// URL or a pattern names on this machine; nothing if there is nothing."""
    path = path_of(source) if source.startswith("file://") else Path(source)
    if path.exists():
        return [path]
    if not _PATTERN.search(str(path)):
        return []
    matches = glob.glob(str(path).replace("[", "[[]"), recursive=True)
    return [Path(match) for match in sorted(matches) if Path(match).is_file()]


def _found(source: str) -> Iterator[tuple[Path, str]]:
    """Each file, or folder, here, and its name for people."""
    if is_remote(source):
        yield from _fetched(source)
        return
    paths = local_paths(source)
    if not paths:
        what = "no file is of this pattern" if _PATTERN.search(source) else "file does not exist"
        raise DatasetError(what, path=source)
    yield from ((path, str(path)) for path in paths)


def _fetched(source: str) -> Iterator[tuple[Path, str]]:
    """One object at a time, each gone when the next is wanted; a folder of objects whole."""
    root, pattern = _split(source)
    store = Store(root)
    found = sorted(key for key in store.list("") if pattern.fullmatch(key)) if pattern else []
    with tempfile.TemporaryDirectory(prefix="pinpoint-data-") as folder:
        for number, key in enumerate(found):
            local = Path(folder) / str(number) / Path(key).name
            store.download(key, local)
            yield local, store.url_of(key)
            local.unlink()
        if pattern is None:
            yield _object_or_folder(source, Path(folder)), source
        elif not found:
            raise DatasetError("no object is of this pattern", path=source)


def _object_or_folder(source: str, folder: Path) -> Path:
    store, key = split_location(source.rstrip("/"))
    local = folder / Path(key).name
    if store.exists(key):
        store.download(key, local)
        return local
    below = store.list(key)
    if not below:
        raise DatasetError("there is no such object", path=source)
    for name in below:
        store.download(name, folder / name)
    return local


def _split(source: str) -> tuple[str, re.Pattern[str] | None]:
    """The folder above the first wildcard, and what a key below it must match; of no pattern, the URL."""
    if not _PATTERN.search(source):
        return source, None
    parts = source.split("/")
    first = next(number for number, part in enumerate(parts) if _PATTERN.search(part))
    if first < 3:
        raise DatasetError("the bucket can't be a pattern", path=source)
    return "/".join(parts[:first]), re.compile(_translated("/".join(parts[first:])))


def _translated(pattern: str) -> str:
    """As `glob` reads it: `*` and `?` stay within a folder, `**/` is any folders."""
    wild = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(wild.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*|\?)", pattern))

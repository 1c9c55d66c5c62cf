"""A folder that `datasets` saved (`save_to_disk`), read without that package: its files, in the order of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from infra.errors import DatasetError

STATE, SPLITS = "state.json", "dataset_dict.json"


def saved_files(folder: Path, called: str, split: str | None) -> list[Path]:
    """`split` chooses of a folder with several. Raises DatasetError for a folder that was not saved so."""
    if (folder / SPLITS).is_file():
        return saved_files(folder / (name := _split(folder, called, split)), f"{called}/{name}", None)
    if split is not None:
        raise DatasetError(f"has no splits, so none named {split!r}: leave 'split' out", path=called)
    if not (folder / STATE).is_file():
        message = "is a folder, but not one that `save_to_disk` of the package datasets wrote: name its files, say /*.parquet"
        raise DatasetError(message, path=called)
    names = [str(file["filename"]) for file in _read(folder / STATE, called)["_data_files"]]
    missing = next((name for name in names if not (folder / name).is_file()), None)
    if missing is not None:
        raise DatasetError(f"lacks {missing}, which its {STATE} names", path=called)
    return [folder / name for name in names]


def _split(folder: Path, called: str, split: str | None) -> str:
    there: list[str] = _read(folder / SPLITS, called)["splits"]
    if split is None and len(there) == 1:
        return there[0]
    if split not in there:
        said = "choose one with 'split'" if split is None else f"there is no split {split!r}"
        raise DatasetError(f"{said}: it has {', '.join(there)}", path=called)
    return split


def _read(file: Path, called: str) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"its {file.name} is not JSON: {error}", path=called) from None

"""A checkpoint is taken only when its trainer has finished with it, which is told by what it left, or by nothing changing.

A manifest of ours whose files are all there, or a marker file, says so at once, unless a file of the checkpoint is newer: then
it is of a former save. Without one the checkpoint must be valid, by names and headers, and unchanged for a settle time, by this
machine's clock. What is not valid may still be written, whatever lies beside it: only when nothing has changed for `PATIENCE`
times as long is it taken for what it is, and evaluated to a skip that says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from infra.errors import PinpointError, SnapshotError, SnapshotInvalid, SnapshotMissing
from infra.foreign import gone_is_missing
from infra.model import Care, Manifest
from infra.saved.layouts import Saved
from infra.snapshot import MANIFEST
from infra.store import Store
from infra.validation.adapters import adapter_files, base_of, examine_adapter, is_adapter
from infra.validation.layout import read_contents
from infra.validation.readers import CheckpointReader, LocalFolder

PATIENCE = 10
_MANIFEST = TypeAdapter(Manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`settled` says why it may be taken, and is empty if it may not yet: `waits` then says for what.

    `files` make up the checkpoint; without any, `fault` says what is wrong with it.
    """

    settled: Literal["", "manifest", "marker", "unchanged", "invalid"]
    waits: str = ""
    files: tuple[str, ...] = ()
    fault: str = ""


def look(saved: Saved, care: Care, clock: float) -> Standing:
    """How a checkpoint stands at `clock`, seconds since 1970. Raises StoreError.

    One that is gone by now, or may not be read, stands in nobody else's way: what it waits for says so.
    """
    try:
        return _look(saved, care, clock)
    except SnapshotError as error:
        return Standing(settled="", waits=str(error))
    except OSError as error:  # StoreError is none
        return Standing(settled="", waits=f"{saved.location} can't be looked at: {error}")


def _look(saved: Saved, care: Care, clock: float) -> Standing:
    reader = saved.reader
    names = reader.entries()
    try:
        files, fault = tuple(files_of(reader)), ""
    except SnapshotInvalid as error:
        files, fault = (), str(error)
    changed = changes(saved)
    if files and MANIFEST in names and _is_newest(MANIFEST, files, changed) and _accounted(reader):
        return Standing(settled="manifest", files=files)
    if files and any(marker in names and _is_newest(marker, files, changed) for marker in care.markers):
        return Standing(settled="marker", files=files)
    quiet = clock - max(changed.values())
    needed = care.settle_s * (PATIENCE if fault else 1)
    if quiet < needed:  # less than nothing, if this machine's clock is behind
        what = fault or "it may still be written"
        return Standing(settled="", waits=f"changed {max(0.0, quiet):.0f} s ago, {needed:g} s are needed: {what}", fault=fault)
    return Standing(settled="invalid" if fault else "unchanged", files=files, fault=fault)


def files_of(reader: CheckpointReader) -> list[str]:
    """The files that make up a checkpoint or an adapter, by the quick check. Raises SnapshotInvalid, SnapshotMissing."""
    if not is_adapter(reader):
        return read_contents(reader).files
    try:
        return adapter_files(examine_adapter(reader, base_of(reader, None)))
    except SnapshotMissing as error:  # the base is, not the adapter
        raise SnapshotInvalid(str(error), subject="base") from error


def changes(saved: Saved) -> dict[str, float]:
    """When each file at the top of the checkpoint changed last. Locally by inode, whose time no copying tool sets back.

    Raises SnapshotMissing if there is none: its trainer may be deleting it.
    """
    reader = saved.reader
    with gone_is_missing(reader):
        if isinstance(reader, LocalFolder):
            found = {name: _changed(reader.folder / name) for name in reader.entries()}
        else:
            written = Store(saved.root).written(saved.name)
            found = {key.removeprefix(f"{saved.name}/"): at for key, at in written.items()}
    if not found:
        raise SnapshotMissing(f"there is no file that can be read in {reader.location}")
    return found


def _changed(path: Path) -> float:
    """Of a link, it or what it leads to, whichever is later; one to nothing has only its own time."""
    own = path.lstat()
    with suppress(OSError):
        return max(own.st_ctime, path.stat().st_ctime)
    return own.st_ctime


def _is_newest(mark: str, files: Iterable[str], changed: dict[str, float]) -> bool:
    """Whether it was written after what it vouches for. One of a former save lies there until the next save replaces it."""
    return all(changed.get(mark, 0.0) >= changed.get(name, math.inf) for name in files)


def _accounted(reader: CheckpointReader) -> bool:
    """Whether a manifest of ours lies there, and every file that it names, at its size."""
    entries = reader.entries()
    try:
        manifest = _MANIFEST.validate_json(reader.read_range(MANIFEST, 0, entries[MANIFEST].size))
    except (ValueError, PinpointError):
        return False
    return all(name in entries and entries[name].size == entry.size for name, entry in manifest.files.items())

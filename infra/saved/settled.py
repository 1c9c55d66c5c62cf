"""A checkpoint is taken only when its trainer has finished with it, which is told by what it left, or by nothing changing.

A manifest of ours whose files are all there, or a marker file, says so at once. Without one the checkpoint must be valid, by
names and headers, and unchanged for a settle time, by this machine's clock. What is not valid may still be written: only when
nothing has changed for `PATIENCE` times as long is it taken for what it is, and evaluated to a skip that says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from infra.errors import PinpointError, SnapshotInvalid, SnapshotMissing
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
    """How a checkpoint stands at `clock`, seconds since 1970. Raises StoreError; one that is gone by now waits for nothing."""
    try:
        return _look(saved, care, clock)
    except SnapshotMissing as error:
        return Standing(settled="", waits=str(error))


def _look(saved: Saved, care: Care, clock: float) -> Standing:
    reader = saved.reader
    names = reader.entries()
    try:
        files, fault = tuple(files_of(reader)), ""
    except SnapshotInvalid as error:
        files, fault = (), str(error)
    if files and MANIFEST in names and _accounted(reader):
        return Standing(settled="manifest", files=files)
    if any(marker in names for marker in care.markers):
        return Standing(settled="marker", files=files, fault=fault)
    quiet = clock - last_change(saved)
    needed = care.settle_s * (PATIENCE if fault else 1)
    if quiet < needed or quiet < 0:
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


def last_change(saved: Saved) -> float:
    """When anything at the top of the checkpoint changed last. Locally by inode, whose time no copying tool sets back."""
    reader = saved.reader
    with gone_is_missing(reader):
        if isinstance(reader, LocalFolder):
            return max((reader.folder / name).stat().st_ctime for name in reader.entries())
        return max(Store(saved.root).written(saved.name).values())


def _accounted(reader: CheckpointReader) -> bool:
    """Whether a manifest of ours lies there, and every file that it names, at its size."""
    entries = reader.entries()
    try:
        manifest = _MANIFEST.validate_json(reader.read_range(MANIFEST, 0, entries[MANIFEST].size))
    except (ValueError, PinpointError):
        return False
    return all(name in entries and entries[name].size == entry.size for name, entry in manifest.files.items())

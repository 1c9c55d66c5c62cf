"""A staged model may lie on several nodes: whoever exports it is told where, and which files are where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """What lies on one host; `shards` are the names of its weight files in `folder`."""

    host: str
    folder: Path
    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedParts:
    """Together the parts are one Hugging Face folder; the first also has the index and all metadata."""

    parts: tuple[StagedPart, ...]
    n_bytes: int

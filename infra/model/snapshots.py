"""What a complete snapshot consists of, and where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.model.points import EvalPoint, WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a snapshot: its size in bytes and the xxh3-128 hex digest of its content (infra/digests.py says of what)."""

    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor of a snapshot: safetensors dtype name, shape, the file that holds it, xxh3-128 of its raw bytes."""

    dtype: str
    shape: tuple[int, ...]
    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModelRef:
    """The complete checkpoint that an adapter adapts: the URL of its folder, and the digest of its content."""

    location: str
    snapshot_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a complete snapshot consists of. It is written last: a prefix without one is not a snapshot.

    `base` is set for a LoRA adapter (PEFT layout), whose files are the adapter's alone.
    """

    run: str
    step: int
    attempt: int
    made_by: str
    files: dict[str, FileEntry]
    tensors: dict[str, TensorEntry]
    snapshot_digest: str
    base: BaseModelRef | None = None
    format: Literal[1] = 1

    @property
    def n_bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())


class StagedPart(BaseModel):
    """What one host has of a staged model; `shards` are the names of its weight files, empty for all that is in the folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    host: str = Field(default="", description="host name, address or Ray node name; empty: where the flow runs")
    path: str = Field(description="folder on that host")
    shards: tuple[str, ...] = Field(default=(), description="weight files in it; empty: all files of the folder")


class SnapshotSource(BaseModel):
    """Where a point's weights are before export: a folder in HF layout, as a local path.

    With `parts` the model lies on several hosts, or on another one than the flow's; the first part has the index and all
    metadata, and `path` is its folder. `staged` folders were made for this point alone and are Pinpoint's to export and
    delete; others are somebody's checkpoint, read in place and never deleted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str = Field(description="folder in Hugging Face layout, or s3://bucket/prefix")
    staged: bool = Field(default=False, description="true if the folder was made for this point and is ours to delete")
    parts: tuple[StagedPart, ...] = Field(default=(), description="of a staged model: what lies on which host")
    base: str | None = Field(
        default=None, description="of a LoRA adapter: its base, a local folder or cached hub id; default: what its config names"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRef:
    """A complete snapshot: `location` is the URL of its folder, `owned` says that its evaluation must delete it."""

    point: EvalPoint
    location: str
    manifest: Manifest
    owned: bool

    @property
    def version(self) -> WeightVersion:
        return WeightVersion.of(self.point, self.manifest.snapshot_digest)

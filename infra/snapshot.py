"""A snapshot exists if and only if its manifest does, and the manifest accounts for every byte.

Everything here is learned from safetensors headers and one pass over the bytes; no tensor is ever built and no pickle
opened. Header format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import mmap
import socket
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from pydantic import TypeAdapter

from infra.errors import SnapshotInvalid, SnapshotMissing
from infra.model import EvalPoint, FileEntry, Manifest, TensorEntry
from infra.store import Store

SNAPSHOTS = "snapshots"
MANIFEST = "manifest.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100 * 2**20
# What is copied beside the weights: an allow list, so that nobody's optimizer state or stray marker travels along.
METADATA = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_MANIFEST = TypeAdapter(Manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan:
    """Where a tensor lies in its file: [begin, end) in bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorSpan]:
    """The tensors of a safetensors file.

    Raises SnapshotInvalid if the header can't be read, or promises more or fewer bytes than the file has.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES + 1
        if length > min(MAX_HEADER_BYTES, size):
            raise SnapshotInvalid(f"{path.name} is truncated or is not a safetensors file", subject=path.name)
        try:
            header: dict[str, Any] = json.loads(file.read(length))
        except ValueError:
            raise SnapshotInvalid(f"{path.name} has an unreadable safetensors header", subject=path.name) from None
    start = 8 + length
    try:
        spans = {name: _span(entry, start) for name, entry in header.items() if name != "__metadata__"}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SnapshotInvalid(f"{path.name} has a safetensors header that describes no tensors", subject=path.name) from None
    end = max((span.end for span in spans.values()), default=start)
    if end != size:
        raise SnapshotInvalid(
            f"{path.name} has {size} bytes, its header accounts for {end}: the file is truncated or damaged",
            subject=path.name,
        )
    return spans


def _span(entry: dict[str, Any], start: int) -> TensorSpan:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end:
        raise ValueError(begin, end)
    return TensorSpan(dtype=entry["dtype"], shape=tuple(entry["shape"]), begin=start + begin, end=start + end)


def weight_files(folder: Path) -> list[str]:
    """The safetensors files of a checkpoint in HF layout, by its index where it has one.

    Raises:
        SnapshotMissing: no such folder.
        SnapshotInvalid: no safetensors, an index that can't be read, names a missing file or one outside the folder.
    """
    if not folder.is_dir():
        raise SnapshotMissing(f"checkpoint folder {folder} does not exist")
    index = folder / INDEX
    if not index.is_file():
        if (folder / SINGLE).is_file():
            return [SINGLE]
        raise SnapshotInvalid(
            f"checkpoint {folder} has neither {SINGLE} nor {INDEX}; weights must be in safetensors format",
            subject=SINGLE,
        )
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        outside = [shard for shard in shards if Path(shard).name != shard]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SnapshotInvalid(f"{INDEX} of checkpoint {folder} can't be read", subject=INDEX) from None
    for shard in outside:
        raise SnapshotInvalid(f"{INDEX} names {shard!r}, which is outside of the checkpoint", subject=shard)
    for shard in shards:
        if not (folder / shard).is_file():
            raise SnapshotInvalid(f"{INDEX} names {shard}, which is not in {folder}", subject=shard)
    return shards


def validate(folder: Path) -> list[str]:
    """Checks a checkpoint folder by its file names and headers; gives the files that make up the snapshot.

    Raises SnapshotMissing or SnapshotInvalid naming the file or tensor at fault.
    """
    shards = weight_files(folder)
    if not (folder / "config.json").is_file():
        raise SnapshotInvalid(f"checkpoint {folder} has no config.json: save the model's config with it", subject="config.json")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise SnapshotInvalid(
            f"checkpoint {folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): save the tokenizer with it",
            subject="tokenizer.json",
        )
    held = {name: shard for shard in shards for name in read_header(folder / shard)}
    if not held:
        empty = INDEX if (folder / INDEX).is_file() else SINGLE
        raise SnapshotInvalid(f"{empty} of checkpoint {folder} names no tensors", subject=empty)
    if (folder / INDEX).is_file():
        _check_index(json.loads((folder / INDEX).read_text())["weight_map"], held)
    metadata = [name for name in METADATA if (folder / name).is_file()]
    return [*metadata, *([INDEX] if (folder / INDEX).is_file() else []), *shards]


def _check_index(promised: dict[str, str], held: dict[str, str]) -> None:
    for name, shard in promised.items():
        if held.get(name) != shard:
            raise SnapshotInvalid(f"{INDEX} promises tensor {name} in {shard}, which does not hold it", subject=name)
    for name, shard in held.items():
        if name not in promised:
            raise SnapshotInvalid(f"{shard} holds tensor {name}, which {INDEX} does not list", subject=name)


def describe(folder: Path, files: Iterable[str], point: EvalPoint) -> Manifest:
    """Reads every byte of `files` once and gives the manifest that accounts for them."""
    entries: dict[str, FileEntry] = {}
    tensors: dict[str, TensorEntry] = {}
    for name in files:
        entries[name], found = _digest_file(folder / name)
        tensors.update(found)
    return Manifest(
        run=point.run,
        step=point.step,
        attempt=point.attempt,
        made_by=f"pinpoint on {socket.gethostname()}",
        files=entries,
        tensors=tensors,
        snapshot_digest=_content_digest(entries, tensors),
    )


def _digest_file(path: Path) -> tuple[FileEntry, dict[str, TensorEntry]]:
    size = path.stat().st_size
    if size == 0:
        return FileEntry(size=0, digest=xxhash.xxh3_128_hexdigest(b"")), {}
    spans = read_header(path) if path.suffix == ".safetensors" else {}
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        digest = xxhash.xxh3_128_hexdigest(view)
        tensors = {name: _tensor(view, span, path.name) for name, span in spans.items()}
    return FileEntry(size=size, digest=digest), tensors


def _tensor(view: memoryview, span: TensorSpan, file: str) -> TensorEntry:
    with view[span.begin : span.end] as raw:
        return TensorEntry(dtype=span.dtype, shape=span.shape, file=file, digest=xxhash.xxh3_128_hexdigest(raw))


def _content_digest(files: dict[str, FileEntry], tensors: dict[str, TensorEntry]) -> str:
    """Of what the model is: tensors by name, and the metadata files; how tensors are spread over shards is left out."""
    lines = [f"{name} {t.dtype} {t.shape} {t.digest}" for name, t in tensors.items()]
    lines += [f"{name} {entry.digest}" for name, entry in files.items() if name in METADATA]
    return xxhash.xxh3_128_hexdigest("\n".join(sorted(lines)).encode())


def new_prefix(point: EvalPoint) -> str:
    """A prefix of the store that no other attempt to export this point has used or will use."""
    return f"{SNAPSHOTS}/{point.run}/{point.key}-{uuid.uuid4().hex[:8]}"


def write_manifest(store: Store, prefix: str, manifest: Manifest) -> None:
    """The last object of a snapshot to be written; by conditional create, so that it never changes afterwards."""
    store.create(f"{prefix}/{MANIFEST}", _MANIFEST.dump_json(manifest, indent=1))


def read_manifest(store: Store, prefix: str) -> Manifest:
    """Raises SnapshotMissing if the prefix has no manifest, SnapshotInvalid if it can't be read."""
    try:
        return _MANIFEST.validate_json(store.read(f"{prefix}/{MANIFEST}"))
    except FileNotFoundError:
        raise SnapshotMissing(f"{store.url_of(prefix)} has no {MANIFEST}: the export did not finish") from None
    except ValueError as error:
        raise SnapshotInvalid(f"{store.url_of(prefix)}/{MANIFEST} can't be read: {error}", subject=MANIFEST) from None


def fetch(store: Store, prefix: str, manifest: Manifest, folder: Path) -> None:
    """Brings a snapshot to a local folder and verifies every file by digest.

    Raises SnapshotInvalid naming a file whose bytes are not the manifest's, SnapshotMissing if one is gone.
    """
    for name, entry in manifest.files.items():
        if Path(name).name != name:
            raise SnapshotInvalid(f"{MANIFEST} names {name!r}, which is outside of the snapshot", subject=name)
        try:
            store.download(f"{prefix}/{name}", folder / name)
        except FileNotFoundError:
            raise SnapshotMissing(f"{store.url_of(prefix)}/{name} is gone") from None
        got, _ = _digest_file(folder / name)
        if got != entry:
            raise SnapshotInvalid(f"{name} has digest {got.digest}, the manifest says {entry.digest}", subject=name)


def delete_snapshots(store: Store, point: EvalPoint) -> int:
    """Deletes the point's snapshots from the store; deleting twice is harmless."""
    found = {
        key: size
        for key, size in store.list(f"{SNAPSHOTS}/{point.run}").items()
        if key.split("/")[2].startswith(f"{point.key}-")
    }
    prefixes = sorted({"/".join(key.split("/")[:3]) for key in found})
    for prefix in prefixes:
        store.delete(f"{prefix}/{MANIFEST}")
        store.delete(prefix)
    return sum(found.values())

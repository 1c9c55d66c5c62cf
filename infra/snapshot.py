"""A snapshot exists if and only if its manifest does, and the manifest accounts for every byte.

Everything here is learned from safetensors headers and one pass over the bytes; no tensor is ever built and no pickle
opened. Header format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import mmap
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path

import xxhash
from pydantic import TypeAdapter

from infra.errors import SnapshotInvalid, SnapshotMissing
from infra.model import EvalPoint, FileEntry, Manifest, TensorEntry
from infra.store import Store
from infra.validation.headers import TensorSpan, read_header
from infra.validation.layout import METADATA, read_contents
from infra.validation.readers import LocalFolder

SNAPSHOTS = "snapshots"
MANIFEST = "manifest.json"
_MANIFEST = TypeAdapter(Manifest)


def validate(folder: Path) -> list[str]:
    """The quick check, by names and headers alone; gives the files that make up the snapshot.

    Whether they make the config's model, and a sane one, is `infra.validation.examination.validate_checkpoint`'s to say.
    Raises SnapshotMissing or SnapshotInvalid naming the file or tensor at fault.
    """
    return read_contents(LocalFolder(folder)).files


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
    spans = read_header(LocalFolder(path.parent), path.name, size) if path.suffix == ".safetensors" else {}
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

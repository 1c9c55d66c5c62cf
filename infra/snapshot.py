"""A snapshot exists if and only if its manifest does, and the manifest accounts for every byte.

Everything here is learned from safetensors headers and one pass over the bytes; no tensor is ever built and no pickle
opened. Header format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path

import xxhash
from pydantic import TypeAdapter

from infra.digests import digest_file
from infra.errors import SnapshotInvalid, SnapshotMissing
from infra.model import RUN_NAME, BaseModelRef, EvalPoint, FileEntry, Manifest, TensorEntry
from infra.store import Store
from infra.validation.layout import METADATA, read_contents
from infra.validation.readers import LocalFolder

SNAPSHOTS = "snapshots"
MANIFEST = "manifest.json"
PREFIX = re.compile(rf"{SNAPSHOTS}/(?P<run>{RUN_NAME.pattern})/step(?P<step>\d{{8,}})-a(?P<attempt>\d+)-[0-9a-f]{{8}}")
_MANIFEST = TypeAdapter(Manifest)


def validate(folder: Path) -> list[str]:
    """The quick check, by names and headers alone; gives the files that make up the snapshot.

    Whether they make the config's model, and a sane one, is `infra.validation.examination.validate_checkpoint`'s to say.
    Raises SnapshotMissing or SnapshotInvalid naming the file or tensor at fault.
    """
    return read_contents(LocalFolder(folder)).files


def describe(folder: Path, files: Iterable[str], point: EvalPoint) -> Manifest:
    """Reads every byte of `files` once and gives the manifest that accounts for them."""
    digests = [digest_file(folder / name) for name in files]
    entries = {digest.name: digest.entry for digest in digests}
    return assemble(entries, {name: entry for digest in digests for name, entry in digest.tensors.items()}, point)


def assemble(
    files: dict[str, FileEntry], tensors: dict[str, TensorEntry], point: EvalPoint, base: BaseModelRef | None = None
) -> Manifest:
    """The manifest of a point's files and the tensors in them; `base` is what an adapter adapts."""
    return Manifest(
        run=point.run,
        step=point.step,
        attempt=point.attempt,
        made_by=f"pinpoint on {socket.gethostname()}",
        files=dict(sorted(files.items())),
        tensors=dict(sorted(tensors.items())),
        snapshot_digest=_content_digest(files, tensors, base),
        base=base,
    )


def _content_digest(files: dict[str, FileEntry], tensors: dict[str, TensorEntry], base: BaseModelRef | None) -> str:
    """Of what the model is: tensors by name, the metadata files, the base of an adapter; not how tensors lie in shards."""
    lines = [f"{name} {t.dtype} {t.shape} {t.digest}" for name, t in tensors.items()]
    lines += [f"{name} {entry.digest}" for name, entry in files.items() if name in METADATA]
    lines += [f"base {base.snapshot_digest}"] if base else []
    return xxhash.xxh3_128_hexdigest("\n".join(sorted(lines)).encode())


def new_prefix(point: EvalPoint) -> str:
    """A prefix of the store that no other attempt to export this point has used or will use; `PREFIX` matches it."""
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

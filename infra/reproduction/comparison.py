"""An engine's tensor is proved if its checksum is what the snapshot's bytes make in one layout, dtype and algorithm."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from infra.errors import SnapshotInvalid
from infra.model import Manifest
from infra.reproduction.algorithms import ALGORITHMS
from infra.reproduction.casting import cast, served_dtypes
from infra.reproduction.layout import VOCABULARY, Rank, part_of, sources, split_rank
from infra.validation.headers import TensorSpan, read_header
from infra.validation.readers import LocalFolder

MAX_THREADS = 8  # reading, casting and hashing let others run
Way = tuple[str, bool, Callable[[bytes], str]]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The tensors of an engine whose checksums were reproduced. `whole`: it holds all of the snapshot, and nothing else."""

    proved: frozenset[str]
    whole: bool


def reproduce(held: Mapping[str, str], folder: Path, manifest: Manifest) -> Coverage:
    """Compares an engine's checksums with what `folder`, which must hold what `manifest` says, makes them.

    Raises SnapshotInvalid for a tensor of the folder that is missing, or is not the manifest's.
    """
    snapshot = _Snapshot(folder, manifest)

    def is_made(name: str) -> bool:
        parts, (_, rank) = sources(name, manifest.tensors), split_rank(name)
        return bool(parts) and rank is not None and snapshot.makes(held[name], parts, rank)

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        proved = frozenset(name for name, made in zip(held, pool.map(is_made, held), strict=True) if made)
    snapshot.verify_rest()
    return Coverage(proved, whole=proved == held.keys() and _is_whole(proved, manifest))


def _is_whole(proved: frozenset[str], manifest: Manifest) -> bool:
    """Whether every rank's part of every tensor of the snapshot is among the proved ones."""
    ranks = defaultdict[str, set[Rank | None]](set)
    for name in proved:
        for part in sources(name, manifest.tensors):
            ranks[part].add(split_rank(name)[1])
    complete = [part for part, found in ranks.items() if all(rank and len(found) == rank.size for rank in found)]
    contents = {manifest.tensors[part].digest for part in complete}  # a tied head is there once, and promised twice
    return all(entry.digest in contents for entry in manifest.tensors.values())


class _Snapshot:
    """The tensors of a folder, of which memory holds a few a thread; each is compared with the manifest when it is read."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.reader, self.manifest = LocalFolder(folder), manifest
        self._spans: dict[str, dict[str, TensorSpan]] = {}
        self._verified: set[str] = set()
        self._last: Way | None = None
        self._kv_heads = _kv_heads(folder)

    def makes(self, checksum: str, parts: list[str], rank: Rank) -> bool:
        """Whether `parts` give it in any way an engine can hold them, the way that did for the last tensor first."""
        for way in self._ways(parts):
            if self._made(parts, rank, way) == checksum:
                self._last = way
                return True
        return False

    def verify_rest(self) -> None:
        """A tensor that the engine has no name for is there as well."""
        for name in self.manifest.tensors.keys() - self._verified:
            self._bytes_of(name)

    def _ways(self, parts: list[str]) -> Iterator[Way]:
        served = served_dtypes(self.manifest.tensors[parts[0]].dtype)
        algorithms = ALGORITHMS if self._last is None else (self._last[2],)
        paddings = (True, False) if VOCABULARY.search(parts[0]) else (False,)
        ways = [(dtype, padded, algorithm) for algorithm in algorithms for dtype in served for padded in paddings]
        return iter(sorted(ways, key=lambda way: way != self._last))

    def _made(self, parts: list[str], rank: Rank, way: Way) -> str | None:
        dtype, padded, algorithm = way
        pieces = []
        for name in parts:
            entry = self.manifest.tensors[name]
            elements = cast(self._bytes_of(name), entry.dtype, dtype)
            piece = part_of(name, elements, entry.shape, rank, self._kv_heads, padded=padded)
            if piece is None:
                return None
            pieces.append(piece.ravel())
        return algorithm(np.concatenate(pieces).tobytes())

    def _bytes_of(self, name: str) -> bytes:
        entry = self.manifest.tensors[name]
        place = self.reader.folder / entry.file
        if not place.is_file():
            raise SnapshotInvalid(f"{place} is gone, which the manifest promises", subject=entry.file)
        if entry.file not in self._spans:
            self._spans[entry.file] = read_header(self.reader, entry.file, place.stat().st_size)
        span = self._spans[entry.file].get(name)
        if span is None:
            raise SnapshotInvalid(f"{place} has no tensor {name}, which the manifest promises", subject=name)
        raw = self.reader.read_range(entry.file, span.begin, span.end)
        if name not in self._verified and xxhash.xxh3_128_hexdigest(raw) != entry.digest:
            raise SnapshotInvalid(f"{place} holds another {name} than the manifest promises", subject=name)
        self._verified.add(name)
        return raw


def _kv_heads(folder: Path) -> int:
    """0 if the model's config does not say."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return 0
    return int(config.get("num_key_value_heads") or 0)

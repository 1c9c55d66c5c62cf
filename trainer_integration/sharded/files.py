"""A shard file is laid out before a byte of it exists, so that many ranks can fill it at once and none has to wait for another.

Data goes in by `pwrite`: on tmpfs that is the fastest way measured, 3.2 GB/s against 1.3 through a fresh mapping, and no full
staging area can end the trainer by a bus error. Reserving the room beforehand (`posix_fallocate`) would cost a fifth more.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from infra.validation.headers import BITS
from infra.validation.layout import SINGLE
from trainer_integration.sharded.blocks import Target

ITEM_BYTES = {dtype: bits // 8 for dtype, bits in BITS.items() if bits >= 8}
SHARD_BYTES = 2**30  # a plain PUT takes a file of up to this size
MIN_SHARD_BYTES = 2**26  # what is smaller is not worth a file for each rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """`begins` gives the byte of the file at which each tensor begins; `header` is all that comes before the first."""

    name: str
    node: str
    header: bytes
    begins: Mapping[str, int]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class OneFile:
    """All tensors go to one file of rank 0's node, whatever its size; its header has `note`."""

    name: str
    note: Mapping[str, str]


def lay_out(
    targets: Mapping[str, Target],
    dtypes: Mapping[str, str],
    homes: Mapping[str, str],
    nodes: Sequence[str],
    shard_bytes: int,
    one: OneFile | None = None,
) -> tuple[ShardFile, ...]:
    """The files of all nodes, numbered through. `homes` gives the node of each tensor; a rank has one of `nodes`.

    A node has as many files as ranks, so that each starts with one of its own, and more if they were above `shard_bytes`.
    """
    sizes = {name: math.prod(target.shape) * ITEM_BYTES[dtypes[name]] for name, target in targets.items()}
    if one is not None:
        names = sorted(targets, key=_natural)
        return (_file(one.name, nodes[0], names, targets=targets, dtypes=dtypes, sizes=sizes, note=one.note),)
    groups: list[tuple[str, list[str]]] = []
    for node in dict.fromkeys(nodes):
        names = sorted((name for name in targets if homes[name] == node), key=_natural)
        fair = sum(sizes[name] for name in names) // nodes.count(node)
        limit = min(shard_bytes, max(fair, min(MIN_SHARD_BYTES, shard_bytes)))
        groups += [(node, group) for group in _filled(names, sizes, limit)]
    return tuple(
        _file(_name(number, len(groups)), *group, targets=targets, dtypes=dtypes, sizes=sizes)
        for number, group in enumerate(groups)
    )


def _name(number: int, count: int) -> str:
    return SINGLE if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def _natural(name: str) -> list[str | int]:
    return [int(word) if word.isdecimal() else word for word in re.split(r"(\d+)", name)]


def _filled(names: Sequence[str], sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    group, size = list[str](), 0
    for name in names:
        if group and size + sizes[name] > limit:
            yield group
            group, size = [], 0
        group.append(name)
        size += sizes[name]
    if group:
        yield group


def _file(
    name: str,
    node: str,
    names: Sequence[str],
    *,
    targets: Mapping[str, Target],
    dtypes: Mapping[str, str],
    sizes: Mapping[str, int],
    note: Mapping[str, str] = MappingProxyType({}),
) -> ShardFile:
    ends, offset = dict[str, int](), 0
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **note}}
    for tensor in names:
        ends[tensor] = offset + sizes[tensor]
        entries[tensor] = {"dtype": dtypes[tensor], "shape": targets[tensor].shape, "data_offsets": [offset, ends[tensor]]}
        offset = ends[tensor]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    return ShardFile(
        name=name,
        node=node,
        header=header,
        begins={tensor: len(header) + end - sizes[tensor] for tensor, end in ends.items()},
        n_bytes=len(header) + offset,
    )


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def write_rows(descriptor: int, data: memoryview, offset: int, width: int, stride: int) -> None:
    """Runs of `width` bytes, the first to `offset` and each next one `stride` bytes further."""
    if width == stride:
        write_all(descriptor, data, offset)
        return
    pwrite, starts = os.pwrite, range(0, len(data), width)
    for start, to in zip(starts, range(offset, offset + len(starts) * stride, stride), strict=True):
        if pwrite(descriptor, data[start : start + width], to) != width:  # a signal came; once more, whole
            write_all(descriptor, data[start : start + width], to)

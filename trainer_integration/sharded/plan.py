"""Every rank computes the same plan from the same inventories: which file has which tensor, and who copies which block.

Replicas share the work by bytes: a part that several ranks hold is copied by one of them. A tensor's file is on the node that
holds most of its bytes; only what that node lacks is sent there, part by part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from infra.errors import ConfigError, ShapeMismatch
from trainer_integration.sharded.blocks import Block, Part, Shape, Target, refuse_gaps
from trainer_integration.sharded.files import ITEM_BYTES, OneFile, ShardFile, lay_out

Key = tuple[str, Part]  # a part of a parameter
Layout = Callable[[str, Mapping[Part, Shape]], Sequence[Target]]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a rank holds of the parameter `name`; `dtype` is safetensors' word for what it is staged as."""

    name: str
    part: Part
    shape: Shape
    dtype: str

    @property
    def key(self) -> Key:
        return self.name, self.part

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Inventory:
    """A rank's node and its pieces."""

    node: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """A block of a piece, and byte `begin` of file number `file`, at which its tensor begins."""

    file: int
    begin: int
    block: Block


@dataclass(frozen=True, slots=True)
class Transfer:
    """A piece that its `receiver`'s node lacks."""

    piece: Piece
    sender: int
    receiver: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`writes` has, for each rank, what it copies of its own pieces; what it is sent first is among them."""

    nodes: tuple[str, ...]
    pieces: tuple[Mapping[Key, Piece], ...]
    targets: Mapping[str, Target]
    dtypes: Mapping[str, str]
    files: tuple[ShardFile, ...]
    writes: tuple[Mapping[Key, tuple[Write, ...]], ...]
    transfers: tuple[Transfer, ...]

    def files_on(self, node: str) -> list[ShardFile]:
        return [file for file in self.files if file.node == node]

    def ranks_on(self, node: str) -> list[int]:
        return [rank for rank, other in enumerate(self.nodes) if other == node]

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


def make_plan(inventories: Sequence[Inventory], layout: Layout, shard_bytes: int, one: OneFile | None = None) -> Plan:
    """`layout` says which tensors a parameter becomes. Raises ConfigError or SnapshotInvalid naming what is at fault."""
    nodes = tuple(inventory.node for inventory in inventories)
    holders = _holders(inventories)
    parts = defaultdict[str, dict[Part, Piece]](dict)
    for name, part in sorted(holders):
        parts[name][part] = holders[name, part][0]
    targets, dtypes = _targets(parts, layout)
    used = {(target.source, block.part) for target in targets.values() for block in target.blocks}
    homes = _homes({n: list(p.values()) for n, p in parts.items() if any((n, part) in used for part in p)}, holders, nodes)
    homes = dict.fromkeys(homes, nodes[0]) if one is not None else homes
    places = {name: homes[target.source] for name, target in targets.items()}
    files = lay_out(targets, dtypes, places, nodes, shard_bytes, one)
    writers, transfers = _writers(sorted(used), holders, homes, nodes)
    return Plan(
        nodes=nodes,
        pieces=tuple({piece.key: piece for piece in inventory.pieces} for inventory in inventories),
        targets=targets,
        dtypes=dtypes,
        files=files,
        writes=_writes(files, targets, writers, len(nodes)),
        transfers=transfers,
    )


def _holders(inventories: Sequence[Inventory]) -> dict[Key, tuple[Piece, list[int]]]:
    found: dict[Key, tuple[Piece, list[int]]] = {}
    for rank, inventory in enumerate(inventories):
        for piece in inventory.pieces:
            first, ranks = found.setdefault(piece.key, (piece, []))
            if first != piece:
                message = f"{piece.name} is {piece.dtype} {list(piece.shape)} on rank {rank}"
                other = f"{first.dtype} {list(first.shape)} on rank {ranks[0]}"
                raise ShapeMismatch(f"{message} and {other}, as the same part {piece.part}", subject=piece.name)
            if ranks and ranks[-1] == rank:
                raise ConfigError(f"rank {rank} has part {piece.part} of {piece.name} twice: give each a name of its own")
            ranks.append(rank)
    return found


def _targets(parts: Mapping[str, Mapping[Part, Piece]], layout: Layout) -> tuple[dict[str, Target], dict[str, str]]:
    targets: dict[str, Target] = {}
    dtypes: dict[str, str] = {}
    for name, pieces in parts.items():
        shapes = {part: piece.shape for part, piece in pieces.items()}
        for target in layout(name, shapes):
            if target.name in targets:
                message = f"{name} and {targets[target.name].source} both become tensor {target.name}"
                raise ConfigError(f"{message}: one of them is named wrongly")
            refuse_gaps(target, shapes)
            targets[target.name] = target
            dtypes[target.name] = next(iter(pieces.values())).dtype
    return targets, dtypes


def _homes(
    parts: Mapping[str, Sequence[Piece]], holders: Mapping[Key, tuple[Piece, list[int]]], nodes: Sequence[str]
) -> dict[str, str]:
    """The node of each parameter's tensors: that which holds most of it and, of equals, has least to do."""
    load = dict.fromkeys(nodes, 0)
    homes: dict[str, str] = {}
    sizes = {name: sum(piece.n_bytes for piece in pieces) for name, pieces in parts.items()}
    for name in sorted(parts, key=lambda name: (-sizes[name], name)):
        held = defaultdict[str, int](int)
        for piece in parts[name]:
            for node in {nodes[rank] for rank in holders[piece.key][1]}:
                held[node] += piece.n_bytes
        homes[name] = min(held, key=lambda node: (-held[node], load[node], nodes.index(node)))
        load[homes[name]] += sizes[name]
    return homes


def _writers(
    keys: Sequence[Key], holders: Mapping[Key, tuple[Piece, list[int]]], homes: Mapping[str, str], nodes: Sequence[str]
) -> tuple[dict[Key, int], tuple[Transfer, ...]]:
    """Who copies each piece, the largest first to whoever has least to do so far; and what has to be sent for it."""
    load, writers, transfers = [0] * len(nodes), dict[Key, int](), list[Transfer]()
    for key in sorted(keys, key=lambda key: (-holders[key][0].n_bytes, key)):
        piece, ranks = holders[key]
        home = homes[piece.name]
        near = [rank for rank in ranks if nodes[rank] == home]
        candidates = near or [rank for rank, node in enumerate(nodes) if node == home]
        writers[key] = min(candidates, key=lambda rank: (load[rank], rank))
        load[writers[key]] += piece.n_bytes
        if not near:
            sender = min(ranks, key=lambda rank: (load[rank], rank))
            load[sender] += piece.n_bytes
            transfers.append(Transfer(piece, sender, writers[key]))
    return writers, tuple(transfers)


def _writes(
    files: Sequence[ShardFile], targets: Mapping[str, Target], writers: Mapping[Key, int], n_ranks: int
) -> tuple[dict[Key, tuple[Write, ...]], ...]:
    found: list[dict[Key, tuple[Write, ...]]] = [{} for _ in range(n_ranks)]
    for number, file in enumerate(files):
        for name, begin in file.begins.items():
            for block in targets[name].blocks:
                key = targets[name].source, block.part
                mine = found[writers[key]]
                mine[key] = (*mine.get(key, ()), Write(number, begin, block))
    return tuple(found)

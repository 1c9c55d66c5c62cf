"""Which tensors of a snapshot are one parameter of SGLang, and which part of each a tensor-parallel rank holds.

Source: sglang 0.5.23, `packed_modules_mapping` of its models, `layers/linear.py` and `layers/vocab_parallel_embedding.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from infra.model import TensorEntry
from infra.reproduction.casting import Array

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
EXPERTS = {"w13_weight": ("gate_proj", "up_proj"), "w2_weight": ("down_proj",)}
VOCABULARY = re.compile(r"(embed_tokens|lm_head)\.weight$")
VOCABULARY_MULTIPLE = 64
BY_ROW = re.compile(r"\.(q|gate|up)_proj\.(weight|bias)$")
BY_HEAD = re.compile(r"\.(k|v)_proj\.(weight|bias)$")
BY_COLUMN = re.compile(r"\.(o|down)_proj\.weight$")


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `size` tensor-parallel ranks."""

    number: int = 0
    size: int = 1


def split_rank(held: str) -> tuple[str, Rank | None]:
    """The name and the rank of a tensor as the engine client names it; no rank for one that it could not place."""
    name, _, place = held.partition("@")
    if not place:
        return name, Rank()
    number, _, size = place.partition("/")
    return name, Rank(int(number), int(size)) if size else None


def sources(held: str, promised: Mapping[str, TensorEntry]) -> list[str]:
    """The snapshot's tensors that, one after the other, are the engine's tensor `held`; none if that is not known."""
    name, _ = split_rank(held)
    if name in promised:
        return [name]
    for fused, parts in FUSED.items():
        if f".{fused}." in name:
            return _all_or_none([name.replace(f".{fused}.", f".{part}.") for part in parts], promised)
    prefix, _, last = name.rpartition(".")
    if prefix.endswith(".experts") and last in EXPERTS:
        counted = range(sum(other.startswith(f"{prefix}.") and other.endswith(".down_proj.weight") for other in promised))
        return _all_or_none([f"{prefix}.{n}.{part}.weight" for n in counted for part in EXPERTS[last]], promised)
    return []


def part_of(name: str, elements: Array, shape: tuple[int, ...], rank: Rank, kv_heads: int, *, padded: bool) -> Array | None:
    """What `rank` holds of the snapshot's tensor `name`; None if it can't be shared out so."""
    if VOCABULARY.search(name) and padded:
        elements = np.concatenate(
            [elements, np.zeros(-shape[0] % VOCABULARY_MULTIPLE * int(np.prod(shape[1:])), elements.dtype)]
        )
    if rank.size == 1:
        return elements
    if BY_COLUMN.search(name):
        return None if shape[-1] % rank.size else np.hsplit(elements.reshape(shape), rank.size)[rank.number]
    if BY_ROW.search(name) or VOCABULARY.search(name):
        return _share(elements, rank.number, rank.size)
    if BY_HEAD.search(name):
        shares = min(rank.size, kv_heads or rank.size)  # fewer heads than ranks: some ranks hold the same
        return _share(elements, rank.number * shares // rank.size, shares)
    return elements


def _share(elements: Array, number: int, of: int) -> Array | None:
    return None if elements.size % of else np.split(elements, of)[number]


def _all_or_none(names: list[str], promised: Mapping[str, TensorEntry]) -> list[str]:
    return names if all(name in promised for name in names) else []

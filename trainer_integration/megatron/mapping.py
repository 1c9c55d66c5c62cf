"""What each Megatron-Core parameter becomes in Hugging Face layout, in blocks; one that nobody knows is an error with its name.

Query, key and value rows are interleaved by query group; a gated projection has gate over up within each tensor-parallel
part; embedding and head have rows of padding. Source: megatron-core 0.16.1, `transformer/{attention,mlp}.py`, `moe/experts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from infra.errors import ConfigError
from trainer_integration.sharded.blocks import Block, Part, Shape, Target, columns, rows_of, side_by_side, stacked

LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the model, from its Hugging Face config. `groups` are key-value heads."""

    heads: int
    groups: int
    head: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: Any) -> Sizes:
        heads = config.num_attention_heads
        return cls(
            heads=heads,
            groups=getattr(config, "num_key_value_heads", None) or heads,
            head=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )


@dataclass(frozen=True, slots=True)
class Parameter:
    """A whole parameter: its parts by (tensor-parallel rank, size), in order of rank, and the prefix of its tensors' names."""

    name: str
    parts: Mapping[Part, Shape]
    prefix: str
    sizes: Sizes

    @property
    def shapes(self) -> list[Shape]:
        return list(self.parts.values())

    def becomes(self, name: str, rows: int, blocks: Sequence[Block], wide: int | None = None) -> Target:
        rest = self.shapes[0][1:] if wide is None else (wide,)
        return Target(name=self.prefix + name, shape=(rows, *rest), source=self.name, blocks=tuple(blocks))


Rule = Callable[[Parameter], Sequence[Target]]
Family = Mapping[str, Rule]  # by a parameter's name, without its layer or expert


def same(name: str) -> Rule:
    """The same on every tensor-parallel rank."""

    def rule(parameter: Parameter) -> list[Target]:
        if len(parameter.parts) > 1:
            raise ConfigError(f"{parameter.name} is split over tensor-parallel ranks, which {name} is not expected to be")
        return [parameter.becomes(name, parameter.shapes[0][0], stacked(parameter.parts))]

    return rule


def by_columns(name: str) -> Rule:
    def rule(parameter: Parameter) -> list[Target]:
        wide = sum(columns(shape) for shape in parameter.shapes)
        return [parameter.becomes(name, parameter.shapes[0][0], side_by_side(parameter.parts), wide)]

    return rule


def vocabulary(name: str, *, head: bool = False) -> Rule:
    """Rows of padding are left out, and so is a head that is the embedding."""

    def rule(parameter: Parameter) -> list[Target]:
        blocks, row, total = list[Block](), 0, parameter.sizes.vocabulary
        for part, shape in parameter.parts.items():
            rows = min(shape[0], total - row)
            if rows > 0:
                blocks.append(rows_of(part, shape, 0, rows, row))
            row += shape[0]
        return [] if head and parameter.sizes.tied else [parameter.becomes(name, min(row, total), blocks)]

    return rule


def gate_and_up(gate: str, up: str) -> Rule:
    def rule(parameter: Parameter) -> list[Target]:
        total = sum(shape[0] for shape in parameter.shapes) // 2
        found = []
        for half, name in enumerate((gate, up)):
            blocks, row = list[Block](), 0
            for part, shape in parameter.parts.items():
                rows = shape[0] // 2
                blocks.append(rows_of(part, shape, half * rows, rows, row))
                row += rows
            found.append(parameter.becomes(name, total, blocks))
        return found

    return rule


def query_key_value(query: str, key: str, value: str) -> Rule:
    def rule(parameter: Parameter) -> list[Target]:
        sizes = parameter.sizes
        heads = sizes.heads // sizes.groups, 1, 1  # in a query group, of each
        group_rows = sum(heads) * sizes.head
        if any(shape[0] % group_rows for shape in parameter.shapes):
            split = f"{len(parameter.parts)} tensor-parallel ranks split {sizes.groups} query groups"
            raise ConfigError(f"{parameter.name} has no whole query groups on a rank ({split}): use ConverterExporter")
        total = sum(shape[0] for shape in parameter.shapes) // group_rows
        found, before = [], 0
        for name, count in zip((query, key, value), heads, strict=True):
            rows = count * sizes.head
            found.append(parameter.becomes(name, total * rows, _of_groups(parameter.parts, group_rows, before, rows)))
            before += rows
        return found

    return rule


def _of_groups(parts: Mapping[Part, Shape], group_rows: int, before: int, rows: int) -> list[Block]:
    """Of each group of `group_rows` the `rows` that come after its first `before`."""
    blocks, row = list[Block](), 0
    for part, shape in parts.items():
        for start in range(0, shape[0], group_rows):
            blocks.append(rows_of(part, shape, start + before, rows, row))
            row += rows
    return blocks


BASE: Family = {
    "embedding.word_embeddings.weight": vocabulary("model.embed_tokens.weight"),
    "output_layer.weight": vocabulary("lm_head.weight", head=True),
    "decoder.final_layernorm.weight": same("model.norm.weight"),
    "input_layernorm.weight": same("input_layernorm.weight"),
    "self_attention.linear_qkv.layer_norm_weight": same("input_layernorm.weight"),
    "pre_mlp_layernorm.weight": same("post_attention_layernorm.weight"),
    "mlp.linear_fc1.layer_norm_weight": same("post_attention_layernorm.weight"),
    "self_attention.linear_qkv.weight": query_key_value(*(f"self_attn.{name}_proj.weight" for name in "qkv")),
    "self_attention.linear_proj.weight": by_columns("self_attn.o_proj.weight"),
    "mlp.linear_fc1.weight": gate_and_up("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.linear_fc2.weight": by_columns("mlp.down_proj.weight"),
}
QK_NORM: Family = {
    "self_attention.q_layernorm.weight": same("self_attn.q_norm.weight"),
    "self_attention.k_layernorm.weight": same("self_attn.k_norm.weight"),
}
QKV_BIAS: Family = {"self_attention.linear_qkv.bias": query_key_value(*(f"self_attn.{name}_proj.bias" for name in "qkv"))}
EXPERTS: Family = {
    "mlp.router.weight": same("mlp.gate.weight"),
    "expert linear_fc1.weight": gate_and_up("gate_proj.weight", "up_proj.weight"),
    "expert linear_fc2.weight": by_columns("down_proj.weight"),
}
_families: dict[str, Family] = {
    "llama": BASE,
    "qwen2": {**BASE, **QKV_BIAS},
    "qwen3": {**BASE, **QK_NORM},
    "qwen3_moe": {**BASE, **QK_NORM, **EXPERTS},
}


def known_families() -> Mapping[str, Family]:
    return MappingProxyType(_families)


def register_family(model_type: str, family: Family) -> None:
    """Teaches the exporter a `model_type`; `{**BASE, "mlp.extra.weight": same("mlp.extra.weight")}` is a family."""
    _families[model_type] = family


def family_of(model_type: str) -> Family:
    """Raises ConfigError naming the families that are known."""
    if model_type not in _families:
        known = ", ".join(sorted(_families))
        remedy = "add it with register_family, or export with ConverterExporter from the converter of your weight sync"
        raise ConfigError(f"no Megatron mapping for model_type {model_type!r} (known: {known}): {remedy}")
    return _families[model_type]


def targets_of(model_type: str, sizes: Sizes, name: str, parts: Mapping[Part, Shape]) -> Sequence[Target]:
    """The tensors that parameter `name` becomes; layers and experts in it are numbered through. Raises ConfigError."""
    family, kind, prefix = family_of(model_type), name, ""
    if layer := LAYER.fullmatch(name):
        kind, prefix = layer[2], f"model.layers.{layer[1]}."
    if expert := EXPERT.fullmatch(kind):
        kind, prefix = f"expert {expert[2]}", f"{prefix}mlp.experts.{expert[1]}."
    if kind not in family:
        message = f"no Hugging Face tensor for Megatron parameter {name}: the mapping of {model_type!r} has no {kind!r}"
        raise ConfigError(f"{message}; add it with register_family, or export with ConverterExporter")
    return family[kind](Parameter(name, dict(sorted(parts.items())), prefix, sizes))

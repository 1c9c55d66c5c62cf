"""What each LoRA parameter of a Megatron-Core model becomes under PEFT's names; one that nobody knows is refused by its name.

A fused linear has one A and one B: each projection in it gets that A, and of B the rows that it has of the fused weight. How a
parameter is split over tensor-parallel ranks is read from its shape beside that of the wrapped weight. Source: megatron-bridge,
`peft/utils.py`, `ParallelLinearAdapter`, which splits A of column-parallel and B of row-parallel linears by rows, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from infra.errors import ConfigError
from infra.validation.adapters import PREFIX
from trainer_integration.megatron.mapping import (
    BASE,
    Family,
    Parameter,
    Rule,
    Sizes,
    by_columns,
    family_of,
    gate_and_up,
    query_key_value,
)
from trainer_integration.sharded.blocks import Part, Shape, Target, stacked

MARK = ".adapter."
MERGED = "export it merged, MegatronExporter(..., merge=...)"
NAME = re.compile(r"decoder\.layers\.(\d+)\.((.+)\.adapter\.(linear_in|linear_out)\.weight)")
ROW_PARALLEL = ("self_attention.linear_proj", "mlp.linear_fc2")
QUERY_KEY_VALUE = tuple(f"self_attn.{name}_proj" for name in "qkv")
GATE_AND_UP = ("mlp.gate_proj", "mlp.up_proj")


def by_rows(*names: str) -> Rule:
    """Each has all of the parameter."""

    def rule(parameter: Parameter) -> list[Target]:
        rows = sum(shape[0] for shape in parameter.shapes)
        return [parameter.becomes(name, rows, stacked(parameter.parts)) for name in names]

    return rule


def side(letter: str, *modules: str) -> list[str]:
    return [f"{module}.lora_{letter}.weight" for module in modules]


ADAPTERS: Family = {
    "self_attention.linear_qkv.adapter.linear_in.weight": by_rows(*side("A", *QUERY_KEY_VALUE)),
    "self_attention.linear_qkv.adapter.linear_out.weight": query_key_value(*side("B", *QUERY_KEY_VALUE)),
    "self_attention.linear_proj.adapter.linear_in.weight": by_columns(*side("A", "self_attn.o_proj")),
    "self_attention.linear_proj.adapter.linear_out.weight": by_rows(*side("B", "self_attn.o_proj")),
    "mlp.linear_fc1.adapter.linear_in.weight": by_rows(*side("A", *GATE_AND_UP)),
    "mlp.linear_fc1.adapter.linear_out.weight": gate_and_up(*side("B", *GATE_AND_UP)),
    "mlp.linear_fc2.adapter.linear_in.weight": by_columns(*side("A", "mlp.down_proj")),
    "mlp.linear_fc2.adapter.linear_out.weight": by_rows(*side("B", "mlp.down_proj")),
}


def adapter_targets_of(model_type: str, sizes: Sizes, name: str, parts: Mapping[Part, Shape]) -> Sequence[Target]:
    """Raises ConfigError for a name that is not in ADAPTERS, and for a linear that `model_type` has in a way of its own."""
    layer, kind, linear, _ = _split_name(name)
    if family_of(model_type).get(f"{linear}.weight") is not BASE[f"{linear}.weight"]:
        message = f"{name} adapts {linear}, for which {model_type!r} has a rule of its own"
        raise ConfigError(f"{message}; {MERGED}")
    return ADAPTERS[kind](Parameter(name, dict(sorted(parts.items())), f"{PREFIX}model.layers.{layer}.", sizes))


def part_of(name: str, shapes: Mapping[str, Shape], tensor: Part) -> Part:
    """Which part of adapter parameter `name` this rank has, whose parameters have `shapes`; `tensor` is its place.

    Raises ConfigError for a shape that fits neither the whole nor a part.
    """
    _, _, linear, own = _split_name(name)
    inner, outer, wrapped = _beside(name, shapes)
    rank = outer[1:]  # never split
    shape, whole = (inner, (*rank, *wrapped[1:])) if own == "linear_in" else (outer, (*wrapped[:1], *rank))
    along_wrapped = (own == "linear_in") == (linear in ROW_PARALLEL)
    if shape == whole:  # as this rank's part of the wrapped weight is
        return tensor if along_wrapped else (0, 1)
    if not along_wrapped and (shape[0] * tensor[1], *shape[1:]) == whole:
        return tensor
    message = f"{name} of shape {list(shape)} is neither all nor one of {tensor[1]} parts of {list(whole)}"
    raise ConfigError(f"{message}, beside a weight of {list(wrapped)}; {MERGED}")


def _beside(name: str, shapes: Mapping[str, Shape]) -> tuple[Shape, Shape, Shape]:
    """Of A, B and the weight that they adapt."""
    stem = name.partition(MARK)[0]
    wanted = [f"{stem}{MARK}linear_in.weight", f"{stem}{MARK}linear_out.weight", f"{stem}.weight"]
    for other in wanted:
        if len(shapes.get(other, ())) != 2:
            raise ConfigError(f"{name} has no matrix {other} beside it, as megatron-bridge's LoRA has; {MERGED}")
    first, second, third = (shapes[other] for other in wanted)
    return first, second, third


def _split_name(name: str) -> tuple[str, str, str, str]:
    """Layer, name inside of it, wrapped linear and side."""
    found = NAME.fullmatch(name)
    if found is None or found[2] not in ADAPTERS:
        known = ", ".join(sorted({kind.partition(MARK)[0] for kind in ADAPTERS}))
        message = f"no PEFT tensor for adapter parameter {name}: known are linear_in.weight and linear_out.weight"
        raise ConfigError(f"{message} of {known}; {MERGED}")
    return found[1], found[2], found[3], found[4]

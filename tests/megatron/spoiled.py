"""Ways to get a Megatron export wrong, each with the right names and shapes: what compares logits has to notice them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.errors import PinpointError
from tests.megatron.cases import SHARD_BYTES, VOCABULARY, Case, built, files_for, hf_config, prompts
from tests.megatron.cpu_model import logits, no_cuda
from trainer_integration.megatron import mapping
from trainer_integration.megatron.exporter import MegatronExporter, MegatronSource
from trainer_integration.megatron.mapping import Parameter, query_key_value, register_family, same
from trainer_integration.megatron.parameters import Position
from trainer_integration.sharded.blocks import Block, Target, rows_of
from trainer_integration.sharded.exporter import StagedExporter
from trainer_integration.sharded.plan import Key
from trainer_integration.sharded.source import Held

EXPERT = re.compile(r"(.+\.experts\.)(\d+)(\..+)")
QKV, FC1 = "self_attention.linear_qkv.weight", "mlp.linear_fc1.weight"
QWEN3 = mapping.known_families()["qwen3"]


def query_over_key_over_value(parameter: Parameter) -> Sequence[Target]:
    """As if the rows of each part were query, key and value, not group by group."""
    right = query_key_value(*(f"self_attn.{name}_proj.weight" for name in "qkv"))(parameter)
    found, before = [], 0
    for target in right:
        rows = target.shape[0] // len(parameter.parts)
        blocks = [rows_of(part, shape, before, rows, n * rows) for n, (part, shape) in enumerate(parameter.parts.items())]
        found.append(parameter.becomes(target.name.removeprefix(parameter.prefix), target.shape[0], blocks))
        before += rows
    return found


def gates_over_ups(parameter: Parameter) -> Sequence[Target]:
    """As if the first parts were gate and the last ones up."""
    total = sum(shape[0] for shape in parameter.shapes) // 2
    halves: dict[int, list[Block]] = {0: [], 1: []}
    for number, (part, shape) in enumerate(parameter.parts.items()):
        for half in range(2):
            row = number * shape[0] + half * shape[0] // 2
            halves[row // total].append(rows_of(part, shape, half * shape[0] // 2, shape[0] // 2, row % total))
    return [parameter.becomes(f"mlp.{name}_proj.weight", total, halves[half]) for half, name in enumerate(("gate", "up"))]


def swapped_norms(family: Mapping[str, mapping.Rule]) -> dict[str, mapping.Rule]:
    query, key = "self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"
    return {**family, query: same("self_attn.k_norm.weight"), key: same("self_attn.q_norm.weight")}


def other_layers(chunks: list[Any]) -> None:
    """Numbers them as the other pipeline stage would."""
    for layer in chunks[0].decoder.layers:
        layer.layer_number = (layer.layer_number + 1) % 4 + 1


class ExpertsAsReplicas(MegatronSource):
    """As if ranks that hold the same dense parameters held the same experts, too: those of either are taken for any."""

    def _held(self) -> dict[Key, Held]:
        found = super()._held()
        for (name, part), held in list(found.items()):
            if expert := EXPERT.fullmatch(name):
                other = (int(expert[2]) + self.position.experts // 2) % self.position.experts
                found[f"{expert[1]}{other}{expert[3]}", part] = held
        return found


FAMILIES: dict[str, Mapping[str, mapping.Rule]] = {
    "query, key and value are not interleaved": {**QWEN3, QKV: query_over_key_over_value},
    "gate and up are concatenated over all parts": {**QWEN3, FC1: gates_over_ups},
    "query and key norms are swapped": swapped_norms(QWEN3),
}
CONTROLS: dict[str, Case] = {
    **dict.fromkeys(FAMILIES, Case(tp=2)),
    "layers are those of the other stage": Case(pp=2),
    "experts are those of the other rank": Case(family="Qwen3Moe", ep=2),
    "experts have the replicas that dense parameters have": Case(family="Qwen3Moe", ep=2),
    "tensors are bfloat16 and the config says float32": Case(),
    "the epsilon of the norms is another": Case(),
    "the base of the rotary embedding is another": Case(),
    "nothing": Case(tp=2),
}


UNSEEN = "tensors are float32 and the config says bfloat16"  # by logits, as they are computed in float32 in any case


def spoiled(rank: int, root: str) -> dict[str, Any]:
    """Exports each control to a folder of its name; gives the live logits."""
    return {name: _spoiled(name, case, Path(root) / name) for name, case in {**CONTROLS, UNSEEN: Case()}.items()}


def _spoiled(name: str, case: Case, folder: Path) -> Any:
    with no_cuda():
        chunks = built(case)
        seen = logits(chunks, prompts(), VOCABULARY)
    config = hf_config(case)
    register_family("qwen3", FAMILIES.get(name, QWEN3))
    position = Position.of_job(getattr(config, "num_experts", None) or 0)
    match name:
        case "layers are those of the other stage":
            other_layers(chunks)
        case "experts are those of the other rank":
            position = dataclasses.replace(position, expert_rank=1 - position.expert_rank)
        case "the epsilon of the norms is another":
            config.rms_norm_eps = 1e-5
        case "the base of the rotary embedding is another":
            config.rope_parameters = {**config.rope_parameters, "rope_theta": 10000.0}
    kind = ExpertsAsReplicas if name == "experts have the replicas that dense parameters have" else MegatronSource
    staged, said = ("bfloat16" if name.startswith("tensors are b") else "float32"), "bfloat16" if name == UNSEEN else "float32"
    source = kind(chunks, config, position, staged, None)  # an exporter would refuse what the configs disagree on
    StagedExporter(source, files_for(config), dtype=said, shard_bytes=SHARD_BYTES)(folder)
    return None if seen is None else seen.numpy()


def refused(rank: int, root: str) -> dict[str, str]:
    """What the exporter says of configs that are not the model's; nothing is staged."""
    found: dict[str, str] = {}
    wrongs: dict[str, dict[str, Any]] = {
        "epsilon": {"rms_norm_eps": 1e-5},
        "rotary base": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        "groups": {"num_key_value_heads": 2},
        "tied": {"tie_word_embeddings": True},
        "vocabulary": {"vocab_size": 384},
        "too large a vocabulary": {"vocab_size": 1024},
        "family": {"model_type": "gpt5"},
    }
    for name, changes in wrongs.items():
        found[name] = _refusal(name, Case(tp=2), changes, Path(root) / name)
    return found


def _refusal(name: str, case: Case, changes: dict[str, Any], folder: Path) -> str:
    chunks = built(case)
    config = hf_config(case)
    for key, value in changes.items():
        setattr(config, key, value)
    try:
        MegatronExporter(chunks, files_for(config))(folder)
    except PinpointError as error:
        return f"{type(error).__name__}: {error}"
    return "exported"

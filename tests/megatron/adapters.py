"""A Megatron model with LoRA as megatron-bridge puts it in, its adapter exported from every layout, and ways to get that wrong.

Even layers are split as megatron-bridge splits them, A of column-parallel and B of row-parallel linears by rows, too; in odd
layers each rank has those whole. Parts have values of their own, in each layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

from infra.errors import PinpointError
from infra.validation.adapters import ADAPTER_WEIGHTS
from tests.megatron.cases import VOCABULARY, Case, built, files_for, hf_config, prompts
from tests.megatron.cpu_model import logits, no_cuda
from tests.megatron.spoiled import query_over_key_over_value
from tests.services.ranks import listing
from trainer_integration.megatron import adapter_mapping
from trainer_integration.megatron.adapter import MegatronAdapterExporter
from trainer_integration.megatron.exporter import MegatronExporter
from trainer_integration.megatron.mapping import Parameter, Rule, gate_and_up
from trainer_integration.sharded.blocks import Target
from trainer_integration.sharded.ranks import Ranks

RANK, ALPHA = 4, 6
CASES = [Case(), Case(tp=2), Case(pp=2), Case(tp=2, pp=2), Case(tp=2, pp=2, scattered=True), Case(family="Qwen2", tp=2)]
LINEARS = [("self_attention", "linear_qkv"), ("self_attention", "linear_proj"), ("mlp", "linear_fc1"), ("mlp", "linear_fc2")]


class WithLora(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, wrapped: Any, *, split: bool) -> None:
        super().__init__()
        self.to_wrap, self.adapter = wrapped, torch.nn.Module()
        row_parallel = isinstance(wrapped, RowParallelLinear)
        common = {"config": wrapped.config, "init_method": torch.nn.init.zeros_, "bias": False}
        plain = {"bias": False, "dtype": torch.float32}
        self.adapter.alpha, self.adapter.dim = ALPHA, RANK
        if row_parallel:
            first: Any = RowParallelLinear(wrapped.input_size, RANK, input_is_parallel=True, skip_bias_add=True, **common)
            gathered: Any = ColumnParallelLinear(RANK, wrapped.output_size, gather_output=True, **common)
            second = gathered if split else torch.nn.Linear(RANK, wrapped.output_size, **plain)
        else:
            gathered = ColumnParallelLinear(wrapped.input_size, RANK, gather_output=True, **common)
            first = gathered if split else torch.nn.Linear(wrapped.input_size, RANK, **plain)
            second = ColumnParallelLinear(RANK, wrapped.output_size, gather_output=False, **common)
        self.adapter.linear_in, self.adapter.linear_out = first, second

    def forward(self, hidden: Any) -> tuple[Any, Any]:
        found, bias = self.to_wrap(hidden)
        for layer in (self.adapter.linear_in, self.adapter.linear_out):
            output = layer(hidden)
            hidden = output[0] if isinstance(output, tuple) else output
        return found + hidden * (ALPHA / RANK), bias


def with_lora(chunks: Sequence[Any], after: int = 0) -> None:
    """Freezes what is there and wraps all linears, as megatron-bridge does, from the layer after the first `after` on."""
    tensor = parallel_state.get_tensor_model_parallel_rank()
    for chunk in chunks:
        chunk.requires_grad_(False)
        for layer in (layer for layer in chunk.decoder.layers if layer.layer_number > after):
            for number, (block, name) in enumerate(LINEARS):
                wrapped = WithLora(getattr(getattr(layer, block), name), split=layer.layer_number % 2 == 0)
                setattr(getattr(layer, block), name, wrapped)
                for parameter in wrapped.adapter.parameters():
                    part = tensor + 1 if getattr(parameter, "tensor_model_parallel", False) else 0
                    place = layer.layer_number, number, part, parameter.shape[0]
                    generator = torch.Generator().manual_seed(hash(place) % 2**31)
                    parameter.data.normal_(std=0.1, generator=generator)


def live_logits(chunks: list[Any]) -> Any:
    with no_cuda():  # Megatron gathers into memory of the current device
        return logits(chunks, prompts(), VOCABULARY)


def query_over_key_over_value_of_b(parameter: Parameter) -> Sequence[Target]:
    found = query_over_key_over_value(parameter)
    return [dataclasses.replace(target, name=target.name.replace(".weight", ".lora_B.weight")) for target in found]


FC1, QKV = "mlp.linear_fc1.adapter.linear_out.weight", "self_attention.linear_qkv.adapter.linear_out.weight"
CONTROLS: dict[str, dict[str, Rule]] = {
    "nothing": {},
    "gate and up are swapped": {FC1: gate_and_up("mlp.up_proj.lora_B.weight", "mlp.gate_proj.lora_B.weight")},
    "query, key and value are not interleaved": {QKV: query_over_key_over_value_of_b},
}


def adapters_exported(rank: int, root: str) -> dict[str, Any]:
    """Each case to folders of its id; gives its live logits, with adapters. Then what is wrong, and what is refused."""
    found: dict[str, Any] = {case.id: _exported(rank, case, Path(root) / case.id) for case in CASES}
    found["later layers"] = _exported(rank, Case(tp=2, pp=2), Path(root) / "later layers", after=3)
    found["controls"] = _controls(Path(root))
    found["refused"] = _refused(rank, Path(root) / "refused")
    return found


def _exported(rank: int, case: Case, folder: Path, after: int = 0) -> Any:
    chunks, files = built(case), files_for(hf_config(case))
    with_lora(chunks, after)
    seen = live_logits(chunks)
    ranks = Ranks.of_job(node=f"node {rank}" if case.scattered else None)
    MegatronExporter(chunks, files, merge=lambda name, weight: weight)(folder / "base")
    exporter = MegatronAdapterExporter(chunks, files, base="some/base", alpha=ALPHA, base_digest="d1", ranks=ranks)
    exporter(folder / "adapter")
    if case.scattered:
        assert exporter.parts is not None
        assert [(part.host, part.shards) for part in exporter.parts.parts] == [("node 0", (ADAPTER_WEIGHTS,))]
    MegatronAdapterExporter(chunks, files, base="some/base", alpha=ALPHA, dtype="bfloat16")(folder / "bfloat16")
    return None if seen is None else seen.numpy()


def _controls(root: Path) -> Any:
    case = Case(tp=2)
    chunks, files = built(case), files_for(hf_config(case))
    with_lora(chunks)
    for name, rules in CONTROLS.items():
        with mock.patch.dict(adapter_mapping.ADAPTERS, rules):
            MegatronAdapterExporter(chunks, files, base="some/base", alpha=ALPHA)(root / name)
    seen = live_logits(chunks)
    MegatronExporter(chunks, files, merge=lambda name, weight: weight)(root / "base of controls")
    return None if seen is None else seen.numpy()


def _refused(rank: int, folder: Path) -> Mapping[str, str]:
    """What all ranks say of what only rank 1 has wrong; the last is right again."""
    case, found = Case(tp=2), dict[str, str]()
    chunks, files = built(case), files_for(hf_config(case))
    chunks[0].requires_grad_(False)
    found["no adapter"] = _outcome(chunks, files, folder)
    with_lora(chunks)
    layer = chunks[0].decoder.layers[2]
    adapter, unlucky = layer.mlp.linear_fc2.adapter, rank == 1
    if unlucky:
        adapter.weight_magnitude = torch.nn.Parameter(torch.zeros(3))
    found["a name"] = _outcome(chunks, files, folder)
    if unlucky:
        del adapter.weight_magnitude
        layer.input_layernorm.requires_grad_(True)
    found["a norm is trained"] = _outcome(chunks, files, folder)
    layer.input_layernorm.requires_grad_(False)
    adapter.alpha = ALPHA + unlucky
    found["alpha"] = _outcome(chunks, files, folder)
    adapter.alpha, weight = ALPHA, adapter.linear_out.weight
    if unlucky:
        adapter.linear_out.weight = torch.nn.Parameter(weight[:-1].clone())
    found["a shape"] = _outcome(chunks, files, folder)
    adapter.linear_out.weight = weight
    found["nothing"] = _outcome(chunks, files, folder)
    return found


def _outcome(chunks: Sequence[Any], files: Any, folder: Path) -> str:
    try:
        MegatronAdapterExporter(chunks, files, base="some/base", alpha=ALPHA)(folder)
    except PinpointError as error:
        return f"{type(error).__name__}: {error} {listing(folder)}"
    return "exported"

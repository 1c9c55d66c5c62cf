"""A parameter has one name on all ranks: its layer and expert are numbered through the whole model, and its part is named.

Replicas need no special care: ranks that name the same part of the same parameter hold the same values, and one copies it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.errors import ConfigError
from trainer_integration.sharded.blocks import Part

if TYPE_CHECKING:
    import torch

LOCAL_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
SEQUENTIAL = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.+)")
GROUPED = re.compile(r"mlp\.experts\.(linear_fc[12])\.(weight|bias)(\d+)")  # TEGroupedMLP
# Always tensor parallel. The attribute that says so is not set where a model was built with `perform_initialization=False`.
COLUMN = r"(?:word_embeddings|output_layer|linear_qkv|linear_fc1)\.(?:weight|bias)\d*"
ROW = r"(?:linear_proj|linear_fc2)\.weight\d*"
SPLIT = re.compile(rf"(?:.*\.)?(?:{COLUMN}|{ROW})")
FUSED = re.compile(r"mlp\.experts\.weight[12]")  # the GroupedMLP without Transformer Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """This rank's place in the parallel layout; `experts` are those of the whole model."""

    tensor: Part
    expert_tensor: Part
    expert_rank: int = 0
    expert_ranks: int = 1
    experts: int = 0

    @classmethod
    def of_job(cls, experts: int) -> Position:
        from megatron.core import parallel_state as state

        return cls(
            tensor=(state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()),
            expert_tensor=(state.get_expert_tensor_parallel_rank(), state.get_expert_tensor_parallel_world_size()),
            expert_rank=state.get_expert_model_parallel_rank(),
            expert_ranks=state.get_expert_model_parallel_world_size(),
            experts=experts,
        )

    @property
    def first_expert(self) -> int:
        return self.expert_rank * (self.experts // self.expert_ranks)


@dataclass(frozen=True, slots=True)
class Local:
    """A parameter of this rank: `local_name` as its module has it, `name` and `part` as the plan has it."""

    local_name: str
    name: str
    part: Part
    parameter: torch.nn.Parameter


def unwrapped(chunk: Any) -> Any:
    """The model inside of DDP and mixed-precision wrappers."""
    while not hasattr(chunk, "decoder") and hasattr(chunk, "module"):
        chunk = chunk.module
    if not hasattr(chunk, "decoder"):
        raise ConfigError(f"{type(chunk).__name__} has no decoder: give the GPTModel or its virtual pipeline chunks")
    return chunk


def local_parameters(chunks: Sequence[Any], position: Position, left_out: Callable[[str], bool]) -> Iterator[Local]:
    """Of all chunks of this rank, with what is saved beside parameters. Raises ConfigError for what can't be named."""
    for chunk in map(unwrapped, chunks):
        numbers = {index: layer.layer_number - 1 for index, layer in enumerate(chunk.decoder.layers)}
        for local_name, parameter in _saved(chunk):
            if not left_out(local_name):
                name = _global_name(local_name.replace(".to_wrap.", "."), numbers, position)
                yield Local(local_name, name, _part(local_name, parameter, position), parameter)


def _saved(chunk: Any) -> Iterator[tuple[str, Any]]:
    yield from chunk.named_parameters()
    for path, module in chunk.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}", buffer


def _global_name(name: str, numbers: dict[int, int], position: Position) -> str:
    layer = LOCAL_LAYER.fullmatch(name)
    if layer is None:
        return name
    prefix, rest = f"decoder.layers.{numbers[int(layer[1])]}.", layer[2]
    if expert := SEQUENTIAL.fullmatch(rest):
        return f"{prefix}mlp.experts.{position.first_expert + int(expert[1])}.{expert[2]}"
    if expert := GROUPED.fullmatch(rest):
        return f"{prefix}mlp.experts.{position.first_expert + int(expert[3])}.{expert[1]}.{expert[2]}"
    if FUSED.fullmatch(rest):
        raise ConfigError(f"{name} has the weights of all experts fused: train with TEGroupedMLP or SequentialMLP")
    return prefix + rest


def _part(name: str, parameter: Any, position: Position) -> Part:
    if not (getattr(parameter, "tensor_model_parallel", False) or SPLIT.fullmatch(name)):
        return 0, 1
    return position.expert_tensor if ".experts." in name else position.tensor

"""Any torch module with a Hugging Face config is staged from where its tensors lie: whole, replicated or sharded by FSDP2.

A shard of a DTensor goes to its own rows or columns of the file; nothing is gathered. Names are those that transformers saves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from infra.architecture import kept_in_float32, own_tensors
from infra.errors import ConfigError
from trainer_integration.sharded.blocks import Block, Part, Shape, Target, columns, rows_of
from trainer_integration.sharded.exporter import StagedExporter
from trainer_integration.sharded.files import SHARD_BYTES
from trainer_integration.sharded.metadata import ModelFiles
from trainer_integration.sharded.plan import Key, Piece
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.sharded.source import Held, pieces_of, values_of

if TYPE_CHECKING:
    import torch

# As transformers has the experts in memory: [experts, gate over up, hidden] and [experts, hidden, intermediate].
EXPERTS = re.compile(r"(.+\.mlp\.experts\.)(gate_up_proj|down_proj)")


class ModuleExporter(StagedExporter):
    """Stages a `transformers` module, wrapped by FSDP2, DDP or nothing. Collective, like every StagedExporter.

    `dtype` is torch's name of what is staged, by default that of the config: mixed precision has float32 masters.
    """

    def __init__(
        self,
        module: Any,
        files: ModelFiles,
        *,
        dtype: str | None = None,
        ranks: Ranks | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        kind = dtype or dtype_of(module, files)
        super().__init__(ModuleSource(unwrapped(module), kind), files, dtype=kind, ranks=ranks, shard_bytes=shard_bytes)


class ModuleSource:
    def __init__(self, module: Any, dtype: str) -> None:
        import torch

        self.module, self.dtype = module, getattr(torch, dtype)

    def tensors(self) -> Mapping[str, Any]:
        """By the name that is staged; a subclass leaves some out."""
        return _saved(self.module)

    def value(self, name: str, tensor: Any) -> torch.Tensor:
        """What is staged of this rank's part, when it is copied."""
        return tensor.to_local() if is_sharded(tensor) else tensor

    def pieces(self) -> list[Piece]:
        return pieces_of(self._held(), self.dtype, kept_in_float32(self.module))

    def layout(self, name: str, parts: Mapping[Part, Shape]) -> Sequence[Target]:
        """A part is (its first index in each dimension, the shape of the whole)."""
        shape = next(iter(parts))[len(next(iter(parts))) // 2 :]
        if fused := EXPERTS.fullmatch(name):
            return list(_of_experts(name, fused[1], fused[2], parts, shape))
        blocks = [_placed(name, part, parts[part], shape) for part in sorted(parts)]
        return [Target(name=name, shape=shape, source=name, blocks=tuple(blocks))]

    def values(self, keys: Sequence[Key]) -> Iterator[tuple[Key, torch.Tensor]]:
        return values_of(self._held(), keys)

    def _held(self) -> dict[Key, Held]:
        held: dict[Key, Held] = {}
        for name, tensor in self.tensors().items():
            local, offset = _place_of(name, tensor)
            held[name, (*offset, *tensor.shape)] = Held(local, tensor.dtype, partial(self.value, name, tensor.detach()))
        return held


def unwrapped(module: Any) -> Any:
    """The module inside of DDP. What `torch.compile` makes has all that its module has."""
    while not hasattr(module, "config") and hasattr(module, "module"):
        module = module.module
    return module


def dtype_of(module: Any, files: ModelFiles) -> str:
    stated = getattr(files.config, "dtype", None) or next(module.parameters()).dtype
    return str(stated).removeprefix("torch.")


def _saved(module: Any) -> dict[str, Any]:
    """transformers fuses experts in memory and splits them in files; sharded ones it can't split."""
    from transformers.core_model_loading import revert_weight_conversion

    tensors = own_tensors(module)
    return tensors if any(map(is_sharded, tensors.values())) else revert_weight_conversion(module, dict(tensors))


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def _place_of(name: str, tensor: Any) -> tuple[Shape, Shape]:
    """Local shape and offset. Raises ConfigError for a placement that is not rows or columns."""
    if not is_sharded(tensor):
        return tuple(tensor.shape), (0,) * tensor.dim()
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for placement in tensor.placements:
        if type(placement).__name__ not in ("Shard", "Replicate"):
            message = f"{name} is placed as {placement}, which can't be staged in place"
            raise ConfigError(f"{message}: use ConverterExporter with full_tensor()")
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(shape), tuple(offset)


def _of_experts(name: str, prefix: str, kind: str, parts: Mapping[Part, Shape], shape: Shape) -> Iterator[Target]:
    """Sharded by expert, each is on one rank; its tensors are runs of its rows."""
    names = ("gate_proj.weight", "up_proj.weight") if kind == "gate_up_proj" else ("down_proj.weight",)
    rows = shape[1] // len(names)
    for part, local in parts.items():
        if local[1:] != shape[1:]:
            raise ConfigError(f"{name} of shape {list(shape)} is not sharded by expert: use ConverterExporter")
        for number in range(local[0]):
            for place, tensor in enumerate(names):
                start = (number * shape[1] + place * rows) * shape[2]
                block = Block(part, start, 1, rows * shape[2], 0, rows * shape[2])
                wanted = f"{prefix}{part[0] + number}.{tensor}"
                yield Target(name=wanted, shape=(rows, shape[2]), source=name, blocks=(block,))


def _placed(name: str, part: Part, local: Shape, shape: Shape) -> Block:
    offset = part[: len(shape)]
    if local[1:] == shape[1:]:
        return rows_of(part, local, 0, local[0] if local else 1, offset[0] if offset else 0)
    if len(shape) == 2:
        return Block(part, 0, local[0], local[1], offset[0] * columns(shape) + offset[1], columns(shape))
    raise ConfigError(f"{name} of shape {list(shape)} is sharded along another dimension than its first: use ConverterExporter")

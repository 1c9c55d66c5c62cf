"""Where a trainer has a converter, for its weight sync for one, the export covers what that covers.

The converter's own collectives are the gather, so training waits for them, too; what it yields is copied at once, each tensor
by one rank, and never kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from infra.architecture import Architecture, in_float32
from infra.errors import ConfigError
from trainer_integration.sharded.blocks import Part, Shape, Target, whole
from trainer_integration.sharded.exporter import StagedExporter
from trainer_integration.sharded.files import SHARD_BYTES
from trainer_integration.sharded.host import name_of
from trainer_integration.sharded.metadata import ModelFiles
from trainer_integration.sharded.plan import Key, Piece
from trainer_integration.sharded.ranks import Ranks

if TYPE_CHECKING:
    import torch

TensorsFrom = Callable[[], Iterable[tuple[str, "torch.Tensor"]]]


class ConverterExporter(StagedExporter):
    """Stages what a converter yields: `lambda: bridge.export_hf_weights(model)` of megatron-bridge, or Miles' iterator.

    `tensors_from` is called once an export, on every rank, and yields every tensor under its Hugging Face name on every rank,
    in the same order; a rank keeps the values it owns and lets go of the others. It is always drained, also after a failure of
    ours. What it raises on one rank between two of its own collectives strands the others in the next one, until their
    group's time-out: that is the converter's to avoid.

    Raises ConfigError if transformers does not know the config's architecture, as names and shapes come from there.
    """

    def __init__(
        self,
        tensors_from: TensorsFrom,
        files: ModelFiles,
        *,
        dtype: str = "bfloat16",
        ranks: Ranks | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        promise = files.promise(dtype)
        if promise.architecture is None:
            raise ConfigError(f"the tensors of the model are not known beforehand: {promise.unknown}")
        source = ConverterSource(tensors_from, promise.architecture, dtype)
        super().__init__(source, files, dtype=dtype, ranks=ranks, shard_bytes=shard_bytes)


class ConverterSource:
    """Every rank has everything, so the plan gives each tensor to one of them."""

    def __init__(self, tensors_from: TensorsFrom, architecture: Architecture, dtype: str) -> None:
        import torch

        self.tensors_from, self.architecture = tensors_from, architecture
        self.dtype = name_of(getattr(torch, dtype), "the export")

    def pieces(self) -> list[Piece]:
        shapes = self.architecture.tensors
        kept = in_float32(self.architecture.strict)
        return [
            Piece(name, (), tuple(shape), "F32" if kept.search(name) else self.dtype)
            for name, shape in shapes.items()
            if math.prod(shape)
        ]

    def layout(self, name: str, parts: Mapping[Part, Shape]) -> Sequence[Target]:
        return [whole(name, parts, name)]

    def values(self, keys: Sequence[Key]) -> Iterator[tuple[Key, torch.Tensor]]:
        for name, tensor in self.tensors_from():
            if name not in self.architecture.tied:
                yield (name, ()), tensor

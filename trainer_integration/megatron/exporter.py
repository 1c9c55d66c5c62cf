"""Megatron-Core's ranks export their model as it is now, in any mix of tensor, pipeline, expert and data parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import ConfigError
from trainer_integration.megatron.agreement import refuse_disagreement
from trainer_integration.megatron.mapping import Sizes, family_of, targets_of
from trainer_integration.megatron.parameters import Local, Position, local_parameters, unwrapped
from trainer_integration.sharded.blocks import Part, Shape, Target
from trainer_integration.sharded.exporter import StagedExporter
from trainer_integration.sharded.files import SHARD_BYTES
from trainer_integration.sharded.metadata import ModelFiles
from trainer_integration.sharded.plan import Key, Piece
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.sharded.source import Held, pieces_of, values_of

if TYPE_CHECKING:
    import torch

Merge = Callable[[str, "torch.Tensor"], "torch.Tensor"]


class MegatronExporter(StagedExporter):
    """Collective: every rank of the job makes it, once its model is built, and calls it with the same folder.

    `model` is a GPTModel or the list of its virtual pipeline chunks. With LoRA adapters in it, as megatron-bridge wraps them
    (`to_wrap` and `adapter`), `merge` gives the merged weight of this rank's part: it is called with the local name and the
    weight of each wrapped module, on one rank at a time, so it must not be collective and must not change the weight.
    Raises ConfigError for a config that is not the model's, or a family without a mapping.
    """

    def __init__(
        self,
        model: Any,
        files: ModelFiles,
        *,
        dtype: str | None = None,
        merge: Merge | None = None,
        ranks: Ranks | None = None,
        position: Position | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """`dtype` is torch's name of what is staged, by default that of the parameters."""
        chunks = chunks_of(model, files.config)
        kind = dtype or str(next(chunks[0].parameters()).dtype).removeprefix("torch.")
        place = position or Position.of_job(getattr(files.config, "num_experts", None) or 0)
        source = MegatronSource(chunks, files.config, place, kind, merge)
        super().__init__(source, files, dtype=kind, ranks=ranks, shard_bytes=shard_bytes)
        self._late = gathering_late(model)

    def __call__(self, folder: Path) -> None:
        gather(self._late, self.ranks)
        super().__call__(folder)


def gathering_late(model: Any) -> list[Any]:
    """Wrappers whose ranks have, after an optimizer step, only their own part of it: `overlap_param_gather` gathers the rest in
    the next forward pass. What is inside such a wrapper can't be told from what is in none: give the wrapper.
    """
    found = []
    for chunk in model if isinstance(model, Sequence) else [model]:
        while chunk is not None:
            if getattr(getattr(chunk, "ddp_config", None), "overlap_param_gather", False):
                found.append(chunk)
            chunk = getattr(chunk, "module", None)
    return found


def gather(late: Sequence[Any], ranks: Ranks) -> None:
    """All ranks have all of the last step. Collective, and so is what it calls; raises StagingFailed."""

    def sync() -> None:
        for wrapper in late:
            wrapper.start_param_sync(force_sync=True)

    if late:
        ranks.together(sync)


def chunks_of(model: Any, config: Any) -> list[Any]:
    """The GPTModels of this rank. Raises ConfigError for a config that is not theirs, or a family without a mapping."""
    chunks = [unwrapped(chunk) for chunk in (model if isinstance(model, Sequence) else [model])]
    family_of(config.model_type)
    for chunk in chunks:
        refuse_disagreement(chunk, config)
    return chunks


class MegatronSource:
    def __init__(self, chunks: Sequence[Any], config: Any, position: Position, dtype: str, merge: Merge | None) -> None:
        import torch

        self.chunks, self.position, self.merge = chunks, position, merge
        self.model_type, self.sizes, self.dtype = config.model_type, Sizes.of(config), getattr(torch, dtype)

    def pieces(self) -> list[Piece]:
        return pieces_of(self._held(), self.dtype)

    def layout(self, name: str, parts: Mapping[Part, Shape]) -> Sequence[Target]:
        return targets_of(self.model_type, self.sizes, name, parts)

    def values(self, keys: Sequence[Key]) -> Iterator[tuple[Key, torch.Tensor]]:
        return values_of(self._held(), keys)

    def _held(self) -> dict[Key, Held]:
        held: dict[Key, Held] = {}
        for local in local_parameters(self.chunks, self.position, self._is_adapter):
            tensor = local.parameter.detach()
            if (local.name, local.part) in held:
                raise ConfigError(f"{local.local_name} becomes {local.name}, which this rank has: give each chunk once")
            held[local.name, local.part] = Held(tuple(tensor.shape), tensor.dtype, partial(self._value, local, tensor))
        return held

    def _is_adapter(self, name: str) -> bool:
        if ".adapter." not in name:
            return False
        if self.merge is None:
            raise ConfigError(f"{name} is of a LoRA adapter: say how it is merged, MegatronExporter(..., merge=...)")
        return True

    def _value(self, local: Local, tensor: torch.Tensor) -> torch.Tensor:
        wrapped = ".to_wrap.weight" in local.local_name
        return self.merge(local.local_name.replace(".to_wrap.weight", ""), tensor) if wrapped and self.merge else tensor

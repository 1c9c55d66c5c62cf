"""The LoRA adapter of a Megatron-Core model is staged alone, as PEFT loads it onto the base, whatever the parallel layout.

`adapter_config.json` and one `adapter_model.safetensors`; the base stays where it is. What is trained besides the adapter, and
what is in the adapter and PEFT has no place for, is refused by its name.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import ConfigError
from infra.validation.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PREFIX, check_adapter
from infra.validation.headers import TensorSpan
from infra.validation.layout import raise_it
from trainer_integration.megatron.adapter_mapping import MARK, MERGED, adapter_targets_of, part_of
from trainer_integration.megatron.exporter import chunks_of, gather, gathering_late
from trainer_integration.megatron.mapping import Sizes
from trainer_integration.megatron.parameters import Position, local_parameters
from trainer_integration.sharded.blocks import Part, Shape, Target
from trainer_integration.sharded.exporter import StagedExporter, spans_of
from trainer_integration.sharded.files import OneFile
from trainer_integration.sharded.lora import BASE_DIGEST
from trainer_integration.sharded.metadata import ModelFiles
from trainer_integration.sharded.plan import Key, Piece, Plan
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.sharded.source import Held, pieces_of, values_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class MegatronAdapterExporter(StagedExporter):
    """Collective, as MegatronExporter is. `model` has LoRA under megatron-bridge's names, `to_wrap` and `adapter`.

    `files` is of the base. `base` is what the adapter's config names it, a path or a repository; `base_digest`, of the snapshot
    that was trained upon, is noted in the header of the weights. Of `files` nothing but the config is read.
    Raises ConfigError for a config that is not the model's; an adapter that is no plain LoRA is refused by `prepare`, by name.
    """

    config = ADAPTER_CONFIG

    def __init__(
        self,
        model: Any,
        files: ModelFiles,
        *,
        base: str,
        alpha: float,
        base_digest: str | None = None,
        dtype: str | None = None,
        ranks: Ranks | None = None,
        position: Position | None = None,
    ) -> None:
        """`alpha` scales B A by alpha / r; `dtype` is torch's name of what is staged, by default that of the adapter."""
        chunks = chunks_of(model, files.config)
        place = position or Position.of_job(getattr(files.config, "num_experts", None) or 0)
        kind = dtype or _dtype_of(chunks)
        super().__init__(MegatronAdapterSource(chunks, files.config, place, kind, alpha), files, dtype=kind, ranks=ranks)
        self.base, self.alpha = base, alpha
        self.one = OneFile(ADAPTER_WEIGHTS, {BASE_DIGEST: base_digest} if base_digest else {})
        self._late = gathering_late(model)

    def __call__(self, folder: Path) -> None:
        gather(self._late, self.ranks)
        super().__call__(folder)

    def _metadata(self, plan: Plan) -> dict[str, bytes]:
        self._refuse_unlike_base(plan)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base,
            "r": _rank_of(plan),
            "lora_alpha": self.alpha,
            "target_modules": _target_modules(plan, self.files.config.num_hidden_layers),
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
        }
        return {ADAPTER_CONFIG: json.dumps(config, indent=2).encode()}

    def _refuse_unlike_base(self, plan: Plan) -> None:
        promise = self.files.promise(self.dtype)
        if promise.architecture is None:
            logger.warning("pinpoint: tensors of the adapter were not compared with its base's: %s", promise.unknown)
            return
        shapes = promise.architecture.tensors.items()
        base = {name: TensorSpan(dtype="", shape=shape, begin=0, end=0) for name, shape in shapes}
        check_adapter(spans_of(plan), base, "(the live model's)", raise_it)


class MegatronAdapterSource:
    def __init__(self, chunks: Sequence[Any], config: Any, position: Position, dtype: str, alpha: float) -> None:
        import torch

        self.chunks, self.position, self.alpha = chunks, position, alpha
        self.model_type, self.sizes, self.dtype = config.model_type, Sizes.of(config), getattr(torch, dtype)

    def pieces(self) -> list[Piece]:
        self._refuse_other_alpha()
        return pieces_of(self._held(), self.dtype)

    def layout(self, name: str, parts: Mapping[Part, Shape]) -> Sequence[Target]:
        return adapter_targets_of(self.model_type, self.sizes, name, parts)

    def values(self, keys: Sequence[Key]) -> Iterator[tuple[Key, torch.Tensor]]:
        return values_of(self._held(), keys)

    def _held(self) -> dict[Key, Held]:
        found = {local.name: local.parameter for local in local_parameters(self.chunks, self.position, lambda _: False)}
        shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
        held: dict[Key, Held] = {}
        for name, tensor in found.items():
            if MARK in name:
                part = part_of(name, shapes, self.position.tensor)
                held[name, part] = Held(shapes[name], tensor.dtype, tensor.detach)
            elif tensor.requires_grad:
                raise ConfigError(f"{name} is trained, and an adapter alone has no place for it: freeze it; or {MERGED}")
        return held

    def _refuse_other_alpha(self) -> None:
        for chunk in self.chunks:
            for name, module in chunk.named_modules():
                own = getattr(module, "alpha", None) if name.endswith(".adapter") else None
                if own is not None and own != self.alpha:
                    raise ConfigError(
                        f"{name} has alpha {own}, the exporter was given alpha={self.alpha}: give that of the model"
                    )


def _dtype_of(chunks: Sequence[Any]) -> str:
    """Of the adapter; a rank that has none stages nothing."""
    named = [pair for chunk in chunks for pair in chunk.named_parameters()]
    of_adapter = [parameter for name, parameter in named if MARK in name]
    return str((of_adapter or [named[0][1]])[0].dtype).removeprefix("torch.")


def _rank_of(plan: Plan) -> int:
    """Raises ConfigError if there are several: `rank_pattern` is not written."""
    ranks = {target.shape[0]: name for name, target in plan.targets.items() if ".lora_A." in name}
    if len(ranks) != 1:
        several = "; ".join(f"r {rank}: {name}" for rank, name in sorted(ranks.items()))
        raise ConfigError(f"an adapter has one r for all of it, and not {several or 'none'}; {MERGED}")
    return next(iter(ranks))


def _target_modules(plan: Plan, layers: int) -> list[str]:
    """By their last names, which engines know, if all layers have them; else in full, so that PEFT adapts no others."""
    modules = [name.removeprefix(PREFIX).partition(".lora_A.")[0] for name in plan.targets if ".lora_A." in name]
    kinds = Counter(module.rpartition(".")[2] for module in modules)
    return sorted(kinds) if set(kinds.values()) == {layers} else sorted(modules)

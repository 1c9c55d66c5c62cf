"""A model with LoRA adapters is staged merged, without being changed, or as the adapter alone.

Merged, each weight is made when it is copied: base plus delta, in the base's dtype, as PEFT's own merge computes it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.architecture import own_tensors
from infra.errors import ConfigError
from trainer_integration.sharded.exporter import StagedExporter
from trainer_integration.sharded.files import SHARD_BYTES
from trainer_integration.sharded.metadata import ModelFiles
from trainer_integration.sharded.modules import ModuleSource, dtype_of, is_sharded
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.sharded.stage import UNFINISHED

if TYPE_CHECKING:
    import torch

ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
BASE_DIGEST = "base_digest"


class MergedLoraExporter(StagedExporter):
    """Stages a PEFT model as the plain model that it computes; what is active is merged. Collective.

    Raises ConfigError for adapters that are no LoRA deltas (DoRA, prompt tuning), and for sharded ones, whose delta would be
    a collective product. For those, give ConverterExporter the merged tensors.
    """

    def __init__(
        self,
        model: Any,
        files: ModelFiles,
        *,
        dtype: str | None = None,
        ranks: Ranks | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        base = _base_of(model)
        kind = dtype or dtype_of(base, files)
        super().__init__(MergedLoraSource(base, kind), files, dtype=kind, ranks=ranks, shard_bytes=shard_bytes)


class MergedLoraSource(ModuleSource):
    def __init__(self, module: Any, dtype: str) -> None:
        super().__init__(module, dtype)
        self.layers = {f"{name}.weight": layer for name, layer in _adapted(module)}

    def tensors(self) -> Mapping[str, Any]:
        from transformers.core_model_loading import revert_weight_conversion

        found = {_plain(name): tensor for name, tensor in own_tensors(self.module).items() if not self._is_adapter(name)}
        return dict(revert_weight_conversion(self.module, found))

    def value(self, name: str, tensor: Any) -> torch.Tensor:
        layer = self.layers.get(name)
        if layer is None or layer.merged or layer.disable_adapters:
            return super().value(name, tensor)
        deltas = [layer.get_delta_weight(adapter) for adapter in layer.active_adapters if adapter in layer.lora_A]
        return tensor + sum(delta.to(tensor.dtype) for delta in deltas) if deltas else tensor

    def _is_adapter(self, name: str) -> bool:
        return ".lora_" in name or ".original_module." in name


def _plain(name: str) -> str:
    """Of the wrapped module; a module saved whole (`modules_to_save`) takes the original's place."""
    head, found, rest = name.partition(".modules_to_save.")
    return f"{head}.{rest.partition('.')[2]}" if found else name.replace(".base_layer.", ".")


def _base_of(model: Any) -> Any:
    if not hasattr(model, "peft_config"):
        raise ConfigError(f"{type(model).__name__} has no adapters: give the PeftModel, or use ModuleExporter")
    return model.get_base_model()


def _adapted(module: Any) -> Iterator[tuple[str, Any]]:
    for name, layer in module.named_modules():
        if not hasattr(layer, "base_layer"):
            continue
        if not hasattr(layer, "lora_A") or any(getattr(layer, "use_dora", {}).values()):
            raise ConfigError(f"{name} has an adapter that is no plain LoRA delta: use ConverterExporter with merged tensors")
        if any(map(is_sharded, layer.parameters())):
            raise ConfigError(f"{name} has a sharded adapter: use ConverterExporter with merged tensors, or AdapterExporter")
        yield name, layer


class AdapterExporter:
    """Stages the adapter alone, as PEFT loads it: `adapter_config.json` and `adapter_model.safetensors`. Collective.

    `base_digest`, of the snapshot that it was trained upon, is noted in the header of the weights. An adapter
    is small: rank 0 writes it, after sharded parts were gathered in the same order on all ranks.
    """

    def __init__(
        self, model: Any, *, adapter: str = "default", base_digest: str | None = None, ranks: Ranks | None = None
    ) -> None:
        _base_of(model)
        if adapter not in model.peft_config:
            raise ConfigError(f"the model has no adapter {adapter!r}: it has {', '.join(sorted(model.peft_config))}")
        self.model, self.adapter, self.base_digest = model, adapter, base_digest
        self.ranks = ranks or Ranks.of_job()

    def __call__(self, folder: Path) -> None:
        """Raises StagingFailed on all ranks; then nothing is left in `folder`."""
        try:
            self.ranks.together(partial(self._write, folder))
        except BaseException:
            for name in (ADAPTER, ADAPTER_CONFIG + UNFINISHED) if self.ranks.rank == 0 else ():
                (folder / name).unlink(missing_ok=True)
            raise
        if self.ranks.rank == 0:
            (folder / (ADAPTER_CONFIG + UNFINISHED)).rename(folder / ADAPTER_CONFIG)

    def _write(self, folder: Path) -> None:
        from peft.utils import get_peft_model_state_dict
        from safetensors.torch import save_file

        held = get_peft_model_state_dict(self.model, adapter_name=self.adapter)
        tensors = {name: held[name].full_tensor() if is_sharded(held[name]) else held[name] for name in sorted(held)}
        if self.ranks.rank != 0:
            return
        folder.mkdir(parents=True, exist_ok=True)
        note = {BASE_DIGEST: self.base_digest} if self.base_digest else {}
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, folder / ADAPTER, metadata={"format": "pt", **note})
        with tempfile.TemporaryDirectory(prefix="pinpoint-adapter-") as scratch:
            self.model.peft_config[self.adapter].save_pretrained(scratch)
            content = (Path(scratch) / ADAPTER_CONFIG).read_bytes()
        (folder / (ADAPTER_CONFIG + UNFINISHED)).write_bytes(content)

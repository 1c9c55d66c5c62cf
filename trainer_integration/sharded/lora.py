"""A model with LoRA adapters is staged merged, without being changed, or as the adapter alone.

Merged, each weight is made when it is copied: base plus delta, in the base's dtype, as PEFT's own merge computes it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
OF_A_DELTA = re.compile(r"(.+)\.lora_(?:embedding_)?[AB]\..+")
REMEDY = "use ConverterExporter with merged tensors"


class MergedLoraExporter(StagedExporter):
    """Stages a PEFT model as the plain model that it computes; what is active is merged. Collective.

    Raises ConfigError for adapters that are no LoRA deltas (DoRA, `lora_bias`, prompt tuning), for sharded ones, whose delta
    would be a collective product, and for one of a tied embedding or head; `prepare` refuses one that belongs to no weight
    that is staged. For those, give ConverterExporter the merged tensors.
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
        _refuse_tied(module)
        self.layers = {f"{name}.weight": layer for name, layer in _adapted(module)}

    def tensors(self) -> Mapping[str, Any]:
        from transformers.core_model_loading import revert_weight_conversion

        found: dict[str, Any] = {}
        for name, tensor in own_tensors(self.module).items():
            if self._is_adapter(name) or self._is_idle(name):
                continue
            if (plain := _plain(name)) in found:
                raise ConfigError(f"{name} and another tensor both become {plain}: {REMEDY}")
            found[plain] = tensor
        staged = dict(revert_weight_conversion(self.module, found))
        if lost := sorted(self.layers.keys() - staged.keys()):
            raise ConfigError(f"the adapter of {lost[0].removesuffix('.weight')} belongs to no weight that is staged: {REMEDY}")
        return staged

    def value(self, name: str, tensor: Any) -> torch.Tensor:
        layer = self.layers.get(name)
        if layer is None or layer.merged or layer.disable_adapters:
            return super().value(name, tensor)
        named = {*layer.lora_A, *layer.lora_embedding_A}
        deltas = [layer.get_delta_weight(adapter) for adapter in layer.active_adapters if adapter in named]
        return tensor + sum(delta.to(tensor.dtype) for delta in deltas) if deltas else tensor

    def _is_idle(self, name: str) -> bool:
        """Of a module saved whole that another adapter has, such as the `ref` by which TRL remembers how training began."""
        head, found, rest = name.partition(".modules_to_save.")
        if not found:
            return False
        return rest.partition(".")[0] not in self.module.get_submodule(head).active_adapters

    def _is_adapter(self, name: str) -> bool:
        if ".lora_" not in name:
            return ".original_module." in name
        of_delta = OF_A_DELTA.fullmatch(name)
        if of_delta is None or f"{of_delta[1]}.weight" not in self.layers:
            raise ConfigError(f"{name} is no part of a plain LoRA delta: {REMEDY}")
        return True


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
        if not hasattr(layer, "lora_A") or hasattr(layer, "parameter_name") or _computes_more(layer):
            raise ConfigError(f"{name} has an adapter that is no plain LoRA delta: {REMEDY}")
        if any(getattr(layer, "lora_bias", {}).values()):
            raise ConfigError(f"{name} has lora_bias, which no merged weight has a place for: train without, or {REMEDY}")
        if any(map(is_sharded, layer.parameters())):
            raise ConfigError(f"{name} has a sharded adapter: {REMEDY}, or AdapterExporter")
        yield name, layer


def _computes_more(layer: Any) -> bool:
    return any(getattr(layer, "use_dora", {}).values()) or bool(getattr(layer, "lora_variant", None))


def _refuse_tied(module: Any) -> None:
    """Merged, what was trained of one end would change the other, too."""
    if not getattr(module.config, "tie_word_embeddings", False):
        return
    for end, layer in (("embedding", module.get_input_embeddings()), ("lm_head", module.get_output_embeddings())):
        if hasattr(layer, "base_layer") or hasattr(layer, "modules_to_save"):
            raise ConfigError(
                f"the {end} has an adapter or is among modules_to_save, and is tied (tie_word_embeddings): the merged model has"
                " one weight for both ends. Leave it out, untie the model before adapters are added, or use AdapterExporter"
            )


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
        # PEFT would ask the hub each time whether the vocabulary was changed, and go by whether it got an answer.
        self._with_embeddings = self._held().keys() != self._held(with_embeddings=False).keys()
        self.ranks = ranks or Ranks.of_job()

    def __call__(self, folder: Path) -> None:
        """Raises StagingFailed on all ranks; then nothing is left in `folder`."""
        try:
            # What fails here keeps no rank waiting in the gather.
            held = self.ranks.together(partial(self._held, with_embeddings=self._with_embeddings))
            self.ranks.together(partial(self._write, folder, held))
            self.ranks.together(partial(self._name_last, folder))
        except BaseException:
            for name in (ADAPTER, ADAPTER_CONFIG + UNFINISHED) if self.ranks.rank == 0 else ():
                (folder / name).unlink(missing_ok=True)
            raise

    def _name_last(self, folder: Path) -> None:
        if self.ranks.rank == 0:
            (folder / (ADAPTER_CONFIG + UNFINISHED)).rename(folder / ADAPTER_CONFIG)

    def _held(self, with_embeddings: bool | Literal["auto"] = "auto") -> dict[str, Any]:
        from peft.utils import get_peft_model_state_dict

        held: dict[str, Any] = get_peft_model_state_dict(
            self.model, adapter_name=self.adapter, save_embedding_layers=with_embeddings
        )
        return held

    def _write(self, folder: Path, held: dict[str, Any]) -> None:
        from safetensors.torch import save_file

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

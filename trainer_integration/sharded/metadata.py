"""Config, tokenizer and generation config are rendered once, before training waits for anything, and are small.

The config names the dtype that is staged and an architecture that loads it; nothing else of it is changed.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.architecture import Promise, promise_of
from infra.errors import ConfigError
from infra.validation.layout import CONFIG, METADATA


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """What lies beside the weights: `config` is transformers' object, the rest are names and contents of files."""

    config: Any
    others: Mapping[str, bytes]
    live: tuple[Any, ...] = ()  # whose files are rendered anew: a Trainer changes them when training begins

    @classmethod
    def of(cls, config: Any, tokenizer: Any, generation_config: Any = None) -> ModelFiles:
        """Raises ConfigError for an object that has no `save_pretrained`."""
        parts = {"config": config, "tokenizer": tokenizer, "generation config": generation_config}
        for name, part in parts.items():
            if part is not None and not hasattr(part, "save_pretrained"):
                raise ConfigError(f"{name} {type(part).__name__} has no save_pretrained: give a Hugging Face {name}")
        with tempfile.TemporaryDirectory(prefix="pinpoint-metadata-") as folder:
            live = tuple(part for part in (tokenizer, generation_config) if part is not None)
            return cls(config=config, others=_saved_in(Path(folder), live), live=live)

    @classmethod
    def of_folder(cls, folder: Path) -> ModelFiles:
        """Of a checkpoint that training started from, as `--hf-checkpoint` names one. None of its code is run."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return cls(config=config, others=_metadata_in(folder))

    def rendered(self, dtype: str) -> dict[str, bytes]:
        """All files for weights in `dtype`, a torch name such as `bfloat16`."""
        config = copy.deepcopy(self.config)
        config.dtype = dtype
        config.architectures = config.architectures or [_architecture(config)]
        with tempfile.TemporaryDirectory(prefix="pinpoint-metadata-") as folder:
            others = {**self.others, **_saved_in(Path(folder), self.live)}
            config.save_pretrained(folder)
            return {**others, CONFIG: (Path(folder) / CONFIG).read_bytes()}

    def promise(self, dtype: str) -> Promise:
        """The tensors that the config describes."""
        with tempfile.TemporaryDirectory(prefix="pinpoint-metadata-") as folder:
            (Path(folder) / CONFIG).write_bytes(self.rendered(dtype)[CONFIG])
            return promise_of(Path(folder))


def _saved_in(folder: Path, live: Sequence[Any]) -> dict[str, bytes]:
    for part in live:
        part.save_pretrained(folder)
    return _metadata_in(folder)


def _metadata_in(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in METADATA if name != CONFIG and (folder / name).is_file()}


def _architecture(config: Any) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if name is None:
        raise ConfigError(f"config of model_type {config.model_type!r} names no architectures: set config.architectures")
    return str(name)


def index_of(weight_map: Mapping[str, str], n_bytes: int) -> bytes:
    return json.dumps({"metadata": {"total_size": n_bytes}, "weight_map": dict(sorted(weight_map.items()))}, indent=1).encode()

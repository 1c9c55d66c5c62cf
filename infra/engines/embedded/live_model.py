"""The weights, tokenizer, path and label being served change together, between two forward passes, or not at all.

`prepare` may run in any thread and touches nothing live; everything else belongs to the model thread. `served` is one
immutable value, so another thread that reads it never sees a new path with an old label.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from infra.architecture import own_tensors, tied_names
from infra.engines.embedded.checkpoint import TensorSpec, read_checkpoint
from infra.errors import SnapshotInvalid, SnapshotMissing

ALGORITHM = "xxh3_128"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    version: str
    path: str
    tokenizer: Any
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWeights:
    """A validated checkpoint in host memory; `tokenizer` is None where the folder has none."""

    path: str
    tensors: dict[str, torch.Tensor]
    tokenizer: Any


class LiveModel:
    def __init__(self, module: Any, served: Served) -> None:
        self.module = module
        self.served = served
        text_config = module.config.get_text_config()
        self.context_length: int = text_config.max_position_embeddings
        self.vocab_size: int = text_config.vocab_size
        self.tied = tied_names(module)
        self._cache_argument = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"

    @classmethod
    def load(cls, path: str, version: str) -> LiveModel:
        """Raises: SnapshotMissing or SnapshotInvalid where `path` can't be served."""
        module = _empty_model(path)
        tokenizer = _read_tokenizer(path)
        if tokenizer is None:
            raise SnapshotInvalid(f"{path} has no tokenizer", subject=TOKENIZER_FILES[0])
        stop_ids = _stop_ids(module, tokenizer)
        live = cls(module, Served(version=version, path=path, tokenizer=tokenizer, stop_ids=stop_ids))
        live.swap(live.prepare(path), version)
        return live

    def prepare(self, path: str) -> PreparedWeights:
        """Read and validate a checkpoint beside the live one. Raises: SnapshotMissing, SnapshotInvalid."""
        expected = {name: TensorSpec.of(tensor) for name, tensor in self._tensors().items()}
        tensors = read_checkpoint(Path(path), expected, self.tied)
        return PreparedWeights(path=path, tensors=tensors, tokenizer=_read_tokenizer(path))

    def swap(self, new: PreparedWeights, version: str | None) -> None:
        """Serve `new`; without a `version` the old label stays, as in SGLang."""
        for name, tensor in self._tensors().items():
            tensor.data = new.tensors[name]
        tokenizer = self.served.tokenizer if new.tokenizer is None else new.tokenizer
        self.served = replace(
            self.served,
            version=self.served.version if version is None else version,
            path=new.path,
            tokenizer=tokenizer,
            stop_ids=_stop_ids(self.module, tokenizer),
        )

    def checksums(self) -> dict[str, str]:
        """xxh3_128 of the raw bytes of each live tensor, under its name in the checkpoint."""
        return {name: xxhash.xxh3_128_hexdigest(_raw_bytes(tensor)) for name, tensor in sorted(self._tensors().items())}

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.module.config)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache, *, last_only: bool
    ) -> torch.Tensor:
        """Logits of shape [rows, 1 or ids.shape[1], vocabulary]; `cache` grows by `ids.shape[1]`."""
        output = self.module(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
            **{self._cache_argument: cache},
        )
        logits: torch.Tensor = output.logits
        return logits

    def _tensors(self) -> dict[str, torch.Tensor]:
        return own_tensors(self.module)


def _empty_model(path: str) -> Any:
    if not Path(path).is_dir():
        raise SnapshotMissing(f"no checkpoint folder {path}")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        module = AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.float32, trust_remote_code=False).eval()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotInvalid(f"{path} is no causal language model: {_line(error)}", subject="config.json") from error
    for layer in DynamicCache(config=module.config).layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            message = f"{path}: the embedded engine can't batch a {type(layer).__name__}; serve it with SGLang"
            raise SnapshotInvalid(message, subject="config.json")
    return module


def _read_tokenizer(path: str) -> Any:
    if not any((Path(path) / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotInvalid(f"the tokenizer in {path} can't be read: {_line(error)}", subject="tokenizer") from error


def _stop_ids(module: Any, tokenizer: Any) -> frozenset[int]:
    holders = (module.config.get_text_config(), module.generation_config, tokenizer)
    sources = [getattr(holder, "eos_token_id", None) for holder in holders]
    return frozenset(one for ids in sources if ids is not None for one in (ids if isinstance(ids, list) else [ids]))


def _raw_bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy())


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

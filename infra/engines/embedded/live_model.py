"""The weights, tokenizer, path and label being served change together, between two forward passes, or not at all.

`prepare` may run in any thread and touches nothing live; everything else belongs to the model thread. `served` is one
immutable value, so another thread that reads it never sees a new path with an old label.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from infra.architecture import own_tensors, tied_names
from infra.engines.embedded.checkpoint import TensorSpec, Weights, raw_bytes, read_checkpoint
from infra.errors import SnapshotInvalid, SnapshotMissing
from infra.validation.layout import TOKENIZER_FILES
from infra.validation.tokens import GENERATION, load_tokenizer

ALGORITHM = "xxh3_128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """`repeated` names the tied tensors that the checkpoint at `path` holds besides those they repeat."""

    version: str
    path: str
    tokenizer: Any
    stop_ids: frozenset[int]
    repeated: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWeights:
    """A validated checkpoint in host memory; `tokenizer` is None where the folder has none."""

    path: str
    weights: Weights
    tokenizer: Any
    generation_stop_ids: frozenset[int]


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
        live = cls(module, Served(version=version, path=path, tokenizer=tokenizer, stop_ids=frozenset()))
        live.swap(live.prepare(path), version)
        return live

    def prepare(self, path: str) -> PreparedWeights:
        """Read and validate a checkpoint beside the live one. Raises: SnapshotMissing, SnapshotInvalid."""
        expected = {name: TensorSpec.of(tensor) for name, tensor in self._tensors().items()}
        return PreparedWeights(
            path=path,
            weights=read_checkpoint(Path(path), expected, self.tied),
            tokenizer=_read_tokenizer(path),
            generation_stop_ids=_read_generation_stop_ids(path),
        )

    def swap(self, new: PreparedWeights, version: str | None) -> None:
        """Serve `new`; without a `version` the old label stays, as in SGLang."""
        for name, tensor in self._tensors().items():
            tensor.data = new.weights.tensors[name]
        tokenizer = self.served.tokenizer if new.tokenizer is None else new.tokenizer
        self.served = replace(
            self.served,
            version=self.served.version if version is None else version,
            path=new.path,
            tokenizer=tokenizer,
            stop_ids=_stop_ids(self.module, tokenizer) | new.generation_stop_ids,
            repeated=new.weights.repeated,
        )

    def checksums(self) -> dict[str, str]:
        """xxh3_128 of the raw bytes of each live tensor, under each name that it has in the checkpoint."""
        held = {name: xxhash.xxh3_128_hexdigest(raw_bytes(tensor).numpy()) for name, tensor in self._tensors().items()}
        held.update({name: held[self.tied[name]] for name in self.served.repeated})
        return dict(sorted(held.items()))

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
    """None where the folder has none. Raises TokenizerInvalid for one that can't be loaded."""
    return load_tokenizer(Path(path)) if any((Path(path) / name).is_file() for name in TOKENIZER_FILES) else None


def _read_generation_stop_ids(path: str) -> frozenset[int]:
    """Of generation_config.json: a chat model's end of turn often stands only there. Without the file, none."""
    try:
        return _ids(json.loads((Path(path) / GENERATION).read_bytes())["eos_token_id"])
    except (FileNotFoundError, KeyError):
        return frozenset()
    except (OSError, ValueError, TypeError) as error:
        message = f"{GENERATION} in {path} can't be read ({_line(error)}): save it again with the model"
        raise SnapshotInvalid(message, subject=GENERATION) from error


def _stop_ids(module: Any, tokenizer: Any) -> frozenset[int]:
    """Those of the config, which transformers copies into the module's own generation config, and of the tokenizer."""
    holders = (module.config.get_text_config(), module.generation_config, tokenizer)
    return frozenset[int]().union(*(_ids(getattr(holder, "eos_token_id", None)) for holder in holders))


def _ids(stated: Any) -> frozenset[int]:
    """Raises TypeError for what is neither an id, nor a list of them, nor None."""
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if any(type(one) is not int for one in ids):
        raise TypeError(f"eos_token_id is {stated!r}")
    return frozenset(ids)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

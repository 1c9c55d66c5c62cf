"""What a config promises: the tensors of its model by name and shape, learned on the `meta` device, where they cost nothing.

torch and transformers are loaded when something here is called, not before. No code from a checkpoint is ever run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import ConfigInvalid

STRICT = "_keep_in_fp32_modules_strict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """`tensors` and `fused` map names to shapes: as transformers saves them, and as its modules name them.

    The two differ where experts are fused in memory. `tied` maps a name that need not be there to the one it repeats;
    `optional` and `ignored` are patterns of names that may be missing, or be there besides; `float32` of those that keep it,
    `strict` of those that transformers has in it whatever the rest is.
    """

    tensors: Mapping[str, tuple[int, ...]]
    fused: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    head: str | None
    vocabulary: frozenset[str]
    optional: tuple[str, ...]
    ignored: tuple[str, ...]
    float32: tuple[str, ...]
    strict: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A config as transformers reads it, defaults included; `unknown` says why its architecture could not be built."""

    values: Mapping[str, Any]
    architecture: Architecture | None = None
    unknown: str = ""


def in_float32(patterns: Sequence[str]) -> re.Pattern[str]:
    """What finds names of parts that `patterns`, as transformers has them, mean."""
    return re.compile(rf"(^|\.)({'|'.join(patterns)})" if patterns else r"(?!)")


def kept_in_float32(module: Any) -> re.Pattern[str]:
    """Names of a live model's tensors that are saved in float32, if they are it, whatever the rest is."""
    return in_float32(_patterns(module, STRICT))


def tied_names(module: Any) -> dict[str, str]:
    return {str(name): str(source) for name, source in getattr(module, "all_tied_weights_keys", {}).items()}


def own_tensors(module: Any) -> dict[str, Any]:
    """The live tensors of a model under its own names, each once: a tied one is left out."""
    tied = tied_names(module)
    # keep_vars: the parameters themselves, so that they can be pointed at other storage. Compiled layers have another prefix.
    held = {name.replace("_orig_mod.", ""): tensor for name, tensor in module.state_dict(keep_vars=True).items()}
    return {name: tensor for name, tensor in held.items() if name not in tied}


def promise_of(folder: Path) -> Promise:
    """Of the `config.json` in `folder`. Raises ConfigInvalid if no model can be made of it."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    raw: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = raw.get("model_type")
    if not isinstance(kind, str):
        raise ConfigInvalid("config.json names no model_type: save the model's own config", subject="config.json")
    if kind not in CONFIG_MAPPING:
        return Promise(values=_text_values(raw), unknown=f"transformers does not know model_type {kind!r}")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        values = {**config.get_text_config().to_dict(), "dtype": _dtype_of(config)}
        if raw.get("quantization_config"):
            return Promise(values=values, unknown="quantized weights have names and shapes of their own")
        return Promise(values=values, architecture=_architecture(_meta_module(config)))
    except ImportError as error:
        return Promise(values=_text_values(raw), unknown=f"{kind} needs a package that is not here: {_line(error)}")
    except _NoCausalModel as error:
        return Promise(values=_text_values(raw), unknown=str(error))
    except (StrictDataclassError, *_UNBUILDABLE) as error:
        raise ConfigInvalid(f"no {kind} model can be made of config.json: {_line(error)}", subject="config.json") from error


_PUBLISHED_IN_FLOAT32 = r"linear_attn\.(A_log|norm\.weight)$"  # of Qwen3-Next and Qwen3.5, which don't say so in code


class _NoCausalModel(Exception):
    pass


_UNBUILDABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RuntimeError, IndexError)


def _dtype_of(config: Any) -> Any:
    return getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)


def _text_values(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Of a config that transformers can't read: the text part of a multimodal one over the rest."""
    text = raw.get("text_config")
    return {**raw, **(text if isinstance(text, dict) else {})}


def _meta_module(config: Any) -> Any:
    import torch
    import transformers

    named = next(iter(getattr(config, "architectures", None) or ()), "")
    mapping = transformers.AutoModelForCausalLM._model_mapping
    with torch.device("meta"):
        kind: Any = getattr(transformers, named, None)
        known = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        generates = known and kind.config_class is type(config) and issubclass(kind, transformers.GenerationMixin)
        if type(config) in mapping and not generates:  # of a multimodal config, that may be its text model alone
            return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        if not known:
            raise _NoCausalModel(f"{config.model_type} is no causal language model that transformers knows")
        return kind._from_config(config)


def _architecture(module: Any) -> Architecture:
    from transformers.core_model_loading import revert_weight_conversion

    fused = own_tensors(module)
    saved = revert_weight_conversion(module, dict(fused))
    names = {id(part): name for name, part in module.named_modules()}
    ends = [module.get_input_embeddings(), module.get_output_embeddings()]
    vocabulary = [f"{names[id(end)]}.weight" if end is not None and id(end) in names else None for end in ends]
    return Architecture(
        tensors={name: tuple(tensor.shape) for name, tensor in saved.items()},
        fused={name: tuple(tensor.shape) for name, tensor in fused.items()},
        tied=tied_names(module),
        head=vocabulary[1],
        vocabulary=frozenset(filter(None, vocabulary)),
        optional=_patterns(module, "_keys_to_ignore_on_load_missing", "_keys_to_ignore_on_save"),
        # As transformers ignores them itself: buffers that old checkpoints have.
        ignored=(*_patterns(module, "_keys_to_ignore_on_load_unexpected"), r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$"),
        float32=(*_patterns(module, "_keep_in_fp32_modules", STRICT), _PUBLISHED_IN_FLOAT32),
        strict=_patterns(module, STRICT),
    )


def _patterns(module: Any, *attributes: str) -> tuple[str, ...]:
    return tuple(str(pattern) for attribute in attributes for pattern in getattr(module, attribute, None) or ())


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

"""A config that does not say what Megatron computes is refused before training: its weights would mean something else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from infra.errors import ConfigError

MISSING = object()
# Megatron's TransformerConfig, the Hugging Face config. None on either side is a default, and not compared.
SAME = (
    ("num_layers", "num_hidden_layers"),
    ("hidden_size", "hidden_size"),
    ("num_attention_heads", "num_attention_heads"),
    ("num_query_groups", "num_key_value_heads"),
    ("kv_channels", "head_dim"),
    ("layernorm_epsilon", "rms_norm_eps"),
    ("num_moe_experts", "num_experts"),
    ("moe_router_topk", "num_experts_per_tok"),
)
# What no config of a known family can say, so that only this is exported; of the router, only where there are experts.
REQUIRED: tuple[tuple[str, object], ...] = (
    ("normalization", "RMSNorm"),
    ("gated_linear_unit", True),
    ("layernorm_zero_centered_gamma", False),
    ("rotary_interleaved", False),
    ("window_size", None),
    ("glu_linear_offset", 0.0),
    ("activation_func_clamp_value", None),
    ("moe_router_group_topk", None),
    ("moe_apply_probs_on_input", False),
)
SAME_ACTIVATION = {"swish": "silu"}


def refuse_disagreement(model: Any, config: Any) -> None:
    """Raises ConfigError naming all that `model`, one chunk of a GPTModel, and its Hugging Face config say differently."""
    found = [*_differences(model.config, config), *_of_layers(model.config, config), *_of_ends(model, config)]
    found += [*_of_router(model.config, config), *_of_rotary(model, config)]
    if found:
        raise ConfigError(
            f"Megatron's config and the Hugging Face config disagree: {'; '.join(found)}. Give this very model's config"
        )


def _differences(ours: Any, config: Any) -> Iterator[str]:
    for name, other in SAME:
        mine, theirs = getattr(ours, name, None), getattr(config, other, None)
        if _applies(name, ours) and mine is not None and theirs is not None and not math.isclose(mine, theirs, rel_tol=1e-9):
            yield f"{name} is {mine}, {other} is {theirs}"
    for name, value in REQUIRED:
        if _applies(name, ours) and getattr(ours, name, value) != value:
            yield f"{name} is {getattr(ours, name)}, only {value} can be exported"


def _applies(name: str, ours: Any) -> bool:
    return not name.startswith("moe_") or bool(getattr(ours, "num_moe_experts", None))


def _of_layers(ours: Any, config: Any) -> Iterator[str]:
    function, theirs = getattr(ours, "activation_func", None), getattr(config, "hidden_act", None)
    mine = getattr(function, "__name__", str(function))
    if function is not None and theirs is not None and mine != SAME_ACTIVATION.get(theirs, theirs):
        yield f"activation_func is {mine}, hidden_act is {theirs}"
    kinds = getattr(config, "layer_types", None)
    if "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", False):
        yield "window_size can't be exported, and the config has layers with a sliding window"


def _of_router(ours: Any, config: Any) -> Iterator[str]:
    if not getattr(ours, "num_moe_experts", None):
        return
    before_top_k, normed = bool(getattr(ours, "moe_router_pre_softmax", False)), getattr(config, "norm_topk_prob", None)
    if normed is not None and bool(normed) == before_top_k:
        yield f"moe_router_pre_softmax is {before_top_k}, norm_topk_prob is {normed}"
    mine, theirs = getattr(ours, "moe_router_score_function", "softmax"), getattr(config, "scoring_func", "softmax")
    if mine != theirs:
        yield f"moe_router_score_function is {mine}, scoring_func is {theirs}"
    scaled, scale = getattr(ours, "moe_router_topk_scaling_factor", None), getattr(config, "routed_scaling_factor", None)
    if not math.isclose(scaled or 1.0, scale or 1.0):
        yield f"moe_router_topk_scaling_factor is {scaled}, routed_scaling_factor is {scale}"


def _of_ends(model: Any, config: Any) -> Iterator[str]:
    tied = getattr(model, "share_embeddings_and_output_weights", None)
    if tied is not None and bool(tied) != bool(config.tie_word_embeddings):
        yield f"share_embeddings_and_output_weights is {tied}, tie_word_embeddings is {config.tie_word_embeddings}"


def _of_rotary(model: Any, config: Any) -> Iterator[str]:
    kind = getattr(model, "position_embedding_type", "rope")
    if kind != "rope":
        yield f"position_embedding_type is {kind}, only rope can be exported"
    base, theta = getattr(model, "rotary_base", None), _rope(config, "rope_theta", None)
    if base is not None and theta is not None and not math.isclose(base, theta):
        yield f"rotary_base is {base}, rope_theta is {theta}"
    part, factor = getattr(model, "rotary_percent", 1.0), _rope(config, "partial_rotary_factor", 1.0)
    if not math.isclose(part, factor):
        yield f"rotary_percent is {part}, partial_rotary_factor is {factor}"
    embedding, scaling = getattr(model, "rotary_pos_emb", None), _rope_type(config)
    if bool(getattr(model, "rotary_scaling", False)) != (scaling == "llama3") or scaling not in ("default", "llama3"):
        yield f"rotary_scaling is {getattr(model, 'rotary_scaling', False)}, rope_type is {scaling}"
    elif scaling == "llama3" and embedding is not None and not _same_frequencies(embedding, config):
        yield "the frequencies of rotary_pos_emb are not those of rope_parameters"
    stretched = getattr(embedding, "seq_len_interpolation_factor", None)
    if stretched not in (None, 1):
        yield f"seq_len_interpolation_factor is {stretched}, only None can be exported"


def _same_frequencies(embedding: Any, config: Any) -> bool:
    """Megatron-Core keeps neither the factor nor the bounds of its scaling."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    wanted, mine = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0], embedding.inv_freq.detach().float().cpu()
    return bool(mine.shape == wanted.shape and torch.allclose(mine, wanted.float(), rtol=1e-4, atol=0.0))


def _rope(config: Any, name: str, default: Any) -> Any:
    """transformers 5 has it in `rope_parameters`, before in the config itself."""
    found = (getattr(config, "rope_parameters", None) or {}).get(name, getattr(config, name, None))
    return default if found is None else found


def _rope_type(config: Any) -> str:
    stated = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return str(stated.get("rope_type", stated.get("type", "default")))

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
REQUIRED = (("normalization", "RMSNorm"), ("gated_linear_unit", True), ("layernorm_zero_centered_gamma", False))


def refuse_disagreement(model: Any, config: Any) -> None:
    """Raises ConfigError naming all that `model`, one chunk of a GPTModel, and its Hugging Face config say differently."""
    found = [*_differences(model.config, config), *_of_ends(model, config)]
    if found:
        raise ConfigError(
            f"Megatron's config and the Hugging Face config disagree: {'; '.join(found)}. Give this very model's config"
        )


def _differences(ours: Any, config: Any) -> Iterator[str]:
    for name, other in SAME:
        mine, theirs = getattr(ours, name, None), getattr(config, other, None)
        if name.startswith("moe_") and getattr(ours, "num_moe_experts", None) is None:
            continue
        if mine is not None and theirs is not None and not math.isclose(mine, theirs, rel_tol=1e-9):
            yield f"{name} is {mine}, {other} is {theirs}"
    for name, value in REQUIRED:
        if getattr(ours, name, value) != value:
            yield f"{name} is {getattr(ours, name)}, only {value} can be exported"
    before_top_k, normed = bool(getattr(ours, "moe_router_pre_softmax", False)), getattr(config, "norm_topk_prob", None)
    if getattr(ours, "num_moe_experts", None) and normed is not None and bool(normed) == before_top_k:
        yield f"moe_router_pre_softmax is {before_top_k}, norm_topk_prob is {normed}"


def _of_ends(model: Any, config: Any) -> Iterator[str]:
    tied = getattr(model, "share_embeddings_and_output_weights", None)
    if tied is not None and bool(tied) != bool(config.tie_word_embeddings):
        yield f"share_embeddings_and_output_weights is {tied}, tie_word_embeddings is {config.tie_word_embeddings}"
    base, theta = getattr(model, "rotary_base", None), _rope_theta(config)
    if base is not None and theta is not None and not math.isclose(base, theta):
        yield f"rotary_base is {base}, rope_theta is {theta}"


def _rope_theta(config: Any) -> float | None:
    """transformers 5 has it in `rope_parameters`, before in `rope_theta`."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return parameters.get("rope_theta", getattr(config, "rope_theta", None))

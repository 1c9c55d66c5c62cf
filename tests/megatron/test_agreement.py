"""Each thing that Megatron can compute otherwise than the Hugging Face config says is refused, by its name in both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.errors import ConfigError
from trainer_integration.megatron.agreement import REQUIRED, SAME, refuse_disagreement

LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def silu() -> None: ...


def gelu() -> None: ...


def ours(**changes: Any) -> SimpleNamespace:
    config: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 64,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": silu,
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_router_score_function": "softmax",
        "moe_router_topk_scaling_factor": None,
        "rotary_interleaved": False,
        "window_size": None,
    }
    ends: dict[str, Any] = {"share_embeddings_and_output_weights": False, "rotary_base": 1e4, "rotary_percent": 1.0}
    ends |= {"rotary_scaling": False, "position_embedding_type": "rope"}
    of_model = {name: changes.pop(name) for name in (*ends, "rotary_pos_emb") if name in changes}
    return SimpleNamespace(config=SimpleNamespace(**{**config, **changes}), **{**ends, **of_model})


def theirs(**changes: Any) -> Any:
    from transformers import Qwen3MoeConfig

    rope = {"rope_type": "default", "rope_theta": 1e4}
    sizes: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
    return Qwen3MoeConfig(**{**sizes, "norm_topk_prob": True, "rope_parameters": rope, **changes})


@pytest.mark.parametrize(
    ("changes", "config", "said"),
    [
        ({"activation_func": gelu}, {}, "activation_func is gelu, hidden_act is silu"),
        ({}, {"hidden_act": "gelu"}, "activation_func is silu, hidden_act is gelu"),
        ({"rotary_interleaved": True}, {}, "rotary_interleaved is True, only False"),
        ({"rotary_percent": 0.5}, {}, "rotary_percent is 0.5, partial_rotary_factor is 1.0"),
        ({"rotary_scaling": True}, {}, "rotary_scaling is True, rope_type is default"),
        ({"rotary_base": 5e5}, {"rope_parameters": LLAMA3}, "rotary_scaling is False, rope_type is llama3"),
        ({}, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "rope_type is linear"),
        ({"rotary_pos_emb": SimpleNamespace(seq_len_interpolation_factor=2.0)}, {}, "seq_len_interpolation_factor is 2.0"),
        ({"position_embedding_type": "none"}, {}, "position_embedding_type is none"),
        ({"window_size": (128, 0)}, {}, r"window_size is \(128, 0\), only None"),
        ({}, {"use_sliding_window": True, "sliding_window": 128}, "the config has layers with a sliding window"),
        ({"moe_router_score_function": "sigmoid"}, {}, "moe_router_score_function is sigmoid, scoring_func is softmax"),
        ({"moe_router_topk_scaling_factor": 2.5}, {}, "moe_router_topk_scaling_factor is 2.5, routed_scaling_factor is None"),
        ({"moe_router_pre_softmax": True}, {}, "moe_router_pre_softmax is True, norm_topk_prob is True"),
        ({"moe_router_group_topk": 2}, {}, "moe_router_group_topk is 2, only None"),
        ({"moe_router_topk": 3}, {}, "moe_router_topk is 3, num_experts_per_tok is 2"),
    ],
)
def test_a_disagreement_is_refused(changes: dict[str, Any], config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        refuse_disagreement(ours(**changes), theirs(**config))


@pytest.mark.parametrize(
    ("changes", "config"),
    [
        ({}, {}),
        ({}, {"hidden_act": "swish"}),
        (
            {"rotary_percent": 0.5},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        ),
        ({"moe_router_topk_scaling_factor": 1.0}, {}),
        ({"num_moe_experts": None, "moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 2.5}, {}),
    ],
    ids=str,
)
def test_what_is_the_same_is_not_refused(changes: dict[str, Any], config: dict[str, Any]) -> None:
    refuse_disagreement(ours(**changes), theirs(**config))


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "refused"), [(8.0, False), (32.0, True)])
def test_rotary_scaling_has_to_be_that_of_the_config(factor: float, refused: bool) -> None:
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    embedding = RotaryEmbedding(
        64, 1.0, rotary_base=500_000, rope_scaling=True, rope_scaling_factor=factor, use_cpu_initialization=True
    )
    model = ours(rotary_base=5e5, rotary_scaling=True, rotary_pos_emb=embedding)
    config = theirs(rope_parameters=LLAMA3, head_dim=64)
    if not refused:
        refuse_disagreement(model, config)
        return
    with pytest.raises(ConfigError, match="the frequencies of rotary_pos_emb are not those of rope_parameters"):
        refuse_disagreement(model, config)


@pytest.mark.slow
def test_every_name_that_is_compared_is_one_of_megatrons() -> None:
    from megatron.core.transformer import TransformerConfig

    names = {name for name, _ in (*SAME, *REQUIRED)}
    names |= {"activation_func", "moe_router_score_function", "moe_router_topk_scaling_factor", "moe_router_pre_softmax"}
    assert names - set(TransformerConfig.__dataclass_fields__) == set()

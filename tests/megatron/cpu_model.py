"""A small Megatron-Core GPTModel that runs on CPU ranks; it differs from the stock one only where that insists on CUDA.

Rotary embedding and core attention stay on the CPU, and pipeline stages are run by a schedule of our own. Weights are made
distinct on all ranks that hold distinct ones: with CPU initialisation and one seed, stages and expert ranks start
bit-identical, which would hide an export that mixes them up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.router import TopKRouter

PADDED_TO = 128


class CpuRotaryEmbedding(RotaryEmbedding):  # type: ignore[misc]
    def get_emb(self, max_seq_len: int, offset: int = 0) -> Any:
        frequencies = self.get_freqs_non_repeated(max_seq_len, offset)
        return torch.cat((frequencies, frequencies), dim=-1)[:, None, None, :]


class CpuAttention(torch.nn.Module):  # type: ignore[misc]
    """query [s, b, heads, head], key and value [s, b, groups, head] -> [s, b, heads x head]."""

    def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str = "self", **_: Any) -> None:
        super().__init__()
        self.config = config

    def forward(
        self, query: Any, key: Any, value: Any, attention_mask: Any = None, attn_mask_type: Any = None, **_: Any
    ) -> Any:
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return found.permute(2, 0, 1, 3).flatten(2)


class CpuGPTModel(GPTModel):  # type: ignore[misc]
    def setup_embeddings_and_output_layer(self) -> None:
        """As upstream, without `.cuda()`."""
        if not self.share_embeddings_and_output_weights or self.config.pipeline_model_parallel_size == 1:
            super().setup_embeddings_and_output_layer()
        elif self.pre_process or self.post_process:
            weight = self.shared_embedding_or_output_weight()
            weight.shared_embedding = True
            if not self.pre_process:
                weight.data.zero_()
                weight.shared = True
            dist.all_reduce(weight.data, group=parallel_state.get_embedding_group())


class CpuRouter(TopKRouter):  # type: ignore[misc]
    def gating(self, input: Any) -> Any:
        return functional.linear(input.float(), self.weight.float()).to(input.dtype)


def initialize(tp: int, pp: int, *, ep: int = 1, vpp: int | None = None) -> None:
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vpp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=1 if ep > 1 else None,
    )
    initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)


@contextlib.contextmanager
def no_cuda() -> Iterator[None]:
    """Expert parallelism asks for the current CUDA device, whatever the tensors are on."""
    with mock.patch("torch.cuda.current_device", return_value=torch.device("cpu")):
        yield


def transformer_config(hf: Any, tp: int, pp: int, *, ep: int = 1, vpp: int | None = None, **changes: Any) -> TransformerConfig:
    options: dict[str, Any] = {
        "num_layers": hf.num_hidden_layers,
        "hidden_size": hf.hidden_size,
        "num_attention_heads": hf.num_attention_heads,
        "num_query_groups": hf.num_key_value_heads,
        "kv_channels": hf.head_dim,
        "ffn_hidden_size": hf.intermediate_size,
        "normalization": "RMSNorm",
        "layernorm_epsilon": hf.rms_norm_eps,
        "qk_layernorm": hf.model_type.startswith("qwen3"),
        "activation_func": functional.silu,
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "add_qkv_bias": hf.model_type == "qwen2",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "params_dtype": torch.float32,
        "pipeline_dtype": torch.float32,
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vpp,
        "expert_model_parallel_size": ep,
        "use_cpu_initialization": True,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "init_method_std": 0.2,
        "batch_p2p_comm": False,
    }
    if experts := getattr(hf, "num_experts", None):
        options |= {
            "num_moe_experts": experts,
            "moe_router_topk": hf.num_experts_per_tok,
            "moe_ffn_hidden_size": hf.moe_intermediate_size,
            "moe_grouped_gemm": False,
            "moe_token_dispatcher_type": "allgather",
            "moe_router_load_balancing_type": "none",
            "moe_router_pre_softmax": False,
            "expert_tensor_parallel_size": 1 if ep > 1 else None,
        }
    return TransformerConfig(**{**options, **changes})


def padded(vocabulary: int, tp: int) -> int:
    return -(-vocabulary // (PADDED_TO * tp)) * PADDED_TO * tp


def build(hf: Any, tp: int, pp: int, *, ep: int = 1, vpp: int | None = None, **changes: Any) -> list[Any]:
    """The chunks of this rank, one unless `vpp`; weights are drawn by what they are, so that replicas agree."""
    config = transformer_config(hf, tp, pp, ep=ep, vpp=vpp, **changes)
    chunks = [_chunk(hf, config, tp, stage if vpp else None) for stage in range(vpp or 1)]
    with torch.no_grad():
        for number, chunk in enumerate(chunks):
            _make_distinct(chunk, number)
    return chunks


def _chunk(hf: Any, config: TransformerConfig, tp: int, stage: int | None) -> Any:
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, moe_grouped_gemm=False, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
    )
    spec.submodules.self_attention.submodules.core_attention = CpuAttention
    torch.manual_seed(1234)
    virtual: dict[str, Any] = {} if stage is None else {"vp_stage": stage, "ignore_virtual": False}
    model = CpuGPTModel(
        config,
        spec,
        vocab_size=padded(hf.vocab_size, tp),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(**virtual),
        post_process=parallel_state.is_pipeline_last_stage(**virtual),
        share_embeddings_and_output_weights=hf.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=int(hf.rope_parameters["rope_theta"]),
        vp_stage=stage,
    )
    model.rotary_pos_emb = CpuRotaryEmbedding(
        kv_channels=config.kv_channels,
        rotary_percent=1.0,
        rotary_base=hf.rope_parameters["rope_theta"],
        use_cpu_initialization=True,
    )
    for module in model.modules():
        if isinstance(module, TopKRouter):
            module.__class__ = CpuRouter
    return model.eval()


def _make_distinct(chunk: Any, number: int) -> None:
    stage, tensor = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()
    for index, (name, parameter) in enumerate(chunk.named_parameters()):
        if "embedding" in name or "output_layer" in name:
            continue  # tied copies stay equal
        place: tuple[int, ...] = (stage, number, index)
        if ".experts." in name:
            place += (parallel_state.get_expert_model_parallel_rank(), parallel_state.get_expert_tensor_parallel_rank(), 1)
        else:
            place += (tensor if getattr(parameter, "tensor_model_parallel", False) else 0, 0, 0)
        generator = torch.Generator().manual_seed(hash(place) % 2**31)
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def logits(chunks: list[Any], ids: Any, vocabulary: int) -> Any:
    """[b, s, vocabulary] on the ranks of the last stage, None on the others."""
    first, last = parallel_state.get_pipeline_model_parallel_rank() == 0, len(chunks) - 1
    ends = parallel_state.get_pipeline_model_parallel_rank() == parallel_state.get_pipeline_model_parallel_world_size() - 1
    found = None
    for number, chunk in enumerate(chunks):
        with torch.no_grad():
            found = _forward(chunk, ids, receives=not (first and number == 0), sends=not (ends and number == last))
    if found is None:
        return None
    shards = [torch.empty_like(found) for _ in range(parallel_state.get_tensor_model_parallel_world_size())]
    dist.all_gather(shards, found.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return torch.cat(shards, -1)[..., :vocabulary].float()


def _forward(chunk: Any, ids: Any, *, receives: bool, sends: bool) -> Any:
    rows, length = ids.shape
    if receives:
        received = torch.empty(length, rows, chunk.config.hidden_size)
        dist.recv(received, parallel_state.get_pipeline_model_parallel_prev_rank())
        chunk.set_input_tensor(received)
    mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)[None, None].expand(rows, 1, length, length)
    found = chunk(ids, torch.arange(length)[None].expand(rows, length), mask)
    if sends:
        dist.send(found.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
        return None
    return found

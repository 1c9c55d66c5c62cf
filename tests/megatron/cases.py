"""Models and layouts that the Megatron tests export, and what runs on each rank to do so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.megatron.cpu_model import build, initialize, logits, no_cuda
from trainer_integration.megatron.exporter import MegatronExporter
from trainer_integration.sharded.metadata import ModelFiles
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.tiny_trainer.model import build_tokenizer

VOCABULARY = 300
SHARD_BYTES = 100_000  # of about 600 kB in all, so that there are several files


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model of `family` on tensor x pipeline x expert ranks; what ranks there are besides are replicas."""

    family: str = "Qwen3"
    tp: int = 1
    pp: int = 1
    ep: int = 1
    vpp: int | None = None
    tied: bool = False
    scattered: bool = False  # each rank on a node of its own, so that parts have to be sent
    changes: dict[str, Any] = field(default_factory=dict)  # of Megatron's config

    @property
    def id(self) -> str:
        layout = f"tp{self.tp}-pp{self.pp}-ep{self.ep}" + (f"-vpp{self.vpp}" if self.vpp else "")
        return f"{self.family}-{layout}" + "-tied" * self.tied + "-scattered" * self.scattered


def hf_config(case: Case, **changes: Any) -> Any:
    import transformers

    options: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "tie_word_embeddings": case.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if case.family == "Qwen2":
        options["head_dim"] = 8  # its attention has no other than hidden_size / num_attention_heads
    if case.family == "Qwen3Moe":
        options |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
        options |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    return getattr(transformers, f"{case.family}Config")(**{**options, **changes})


def files_for(config: Any) -> ModelFiles:
    tokenizer = build_tokenizer()
    return ModelFiles.of(config, tokenizer)


def prompts() -> Any:
    return torch.randint(0, VOCABULARY, (2, 48), generator=torch.Generator().manual_seed(0))


def built(case: Case) -> list[Any]:
    initialize(case.tp, case.pp, ep=case.ep, vpp=case.vpp)
    return build(hf_config(case), case.tp, case.pp, ep=case.ep, vpp=case.vpp, **case.changes)


class WithAdapter(torch.nn.Module):  # type: ignore[misc]
    """A linear layer of rank 4 beside the one it wraps, under megatron-bridge's names for both."""

    def __init__(self, wrapped: torch.nn.Module) -> None:
        super().__init__()
        self.to_wrap = wrapped
        rows, columns = wrapped.weight.shape
        generator = torch.Generator().manual_seed(5)
        self.adapter = torch.nn.ParameterDict(
            {
                "linear_in": torch.randn(4, columns, generator=generator) * 0.1,
                "linear_out": torch.randn(rows, 4, generator=generator) * 0.1,
            }
        )

    def forward(self, hidden: Any) -> tuple[Any, Any]:
        found, bias = self.to_wrap(hidden)
        return found + hidden @ self.adapter["linear_in"].T @ self.adapter["linear_out"].T, bias


def exported(rank: int, root: str, cases: list[Case]) -> dict[str, Any]:
    """Exports each case to a folder of its id; gives the logits of its live model, where this rank has them."""
    found: dict[str, Any] = {}
    for case in cases:
        with no_cuda():
            chunks = built(case)
            seen = logits(chunks, prompts(), VOCABULARY)
        config = hf_config(case)
        ranks = Ranks.of_job(node=f"node {rank}" if case.scattered else None)
        exporter = MegatronExporter(chunks, files_for(config), shard_bytes=SHARD_BYTES, ranks=ranks)
        exporter(Path(root) / case.id)
        copied = len(exporter.plan.writes[rank]) if exporter.plan else 0
        found[case.id] = {"logits": None if seen is None else seen.numpy(), "copied": copied, "parts": exporter.parts}
    return found


def adapted(rank: int, root: str) -> Any:
    """Stages a model with adapters merged, and as it would be without; gives the live logits of the last stage."""
    case = Case(pp=2)
    chunks = built(case)
    files = files_for(hf_config(case))
    MegatronExporter(chunks, files)(Path(root) / "plain")
    for layer in chunks[0].decoder.layers:
        layer.self_attention.linear_proj = WithAdapter(layer.self_attention.linear_proj)

    def merge(name: str, weight: Any) -> Any:
        adapter = chunks[0].get_submodule(name).adapter
        return weight + adapter["linear_out"] @ adapter["linear_in"]

    seen = logits(chunks, prompts(), VOCABULARY)
    MegatronExporter(chunks, files, merge=merge)(Path(root) / "merged")
    return None if seen is None else seen.numpy()


def loaded_logits(folder: Path) -> tuple[Any, dict[str, Any]]:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    model, information = AutoModelForCausalLM.from_pretrained(folder, **options)
    with torch.no_grad():
        return model(prompts()).logits.numpy(), information

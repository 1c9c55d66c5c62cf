"""One recipe of AdamW for both phases, and a step that no single batch can throw off: gradients are clipped to norm 1."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

MAX_GRADIENT_NORM = 1.0


def build_optimizer(model: Qwen3ForCausalLM, learning_rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clipped_step(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    optimizer.step()

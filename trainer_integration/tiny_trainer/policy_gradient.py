"""One optimizer step from rollouts that slightly older weights sampled: advantages within a question, truncated importance.

A token's gradient is weighted by min(pi_now / pi_behaviour, `max_ratio`) (IMPALA's truncated importance weight,
https://arxiv.org/abs/1802.01561), not differentiated through. Questions whose samples all got one reward carry no
gradient and cost nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from trainer_integration.tiny_trainer.optimizer import clipped_step
from trainer_integration.tiny_trainer.rollouts import Rollouts
from trainer_integration.tiny_trainer.sampling import answer_log_probs
from trainer_integration.tiny_trainer.tokens import until_eos


def group_advantages(rewards: Tensor) -> Tensor:
    """[questions, samples] -> the same shape: zero mean and unit deviation in each question, zeros where all are equal."""
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)


def policy_gradient_loss(model: Qwen3ForCausalLM, rollouts: Rollouts, max_ratio: float) -> Tensor | None:
    """The mean over all tokens of the batch, or None when no question has both a right and a wrong answer."""
    rewards = rollouts.rewards.view(len(rollouts.questions), -1)
    mixed = rewards.amax(dim=1) != rewards.amin(dim=1)
    if not mixed.any():
        return None
    rows = mixed.repeat_interleave(rewards.shape[1])
    answers = rollouts.answers[rows]
    log_probs = answer_log_probs(model, rollouts.questions[mixed], answers)
    ratio = (log_probs.detach() - rollouts.log_probs[rows]).exp().clamp(max=max_ratio)
    weight = ratio * group_advantages(rewards)[mixed].view(-1, 1)
    return -(weight * log_probs * until_eos(answers)).sum() / until_eos(rollouts.answers).sum()


def policy_gradient_step(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, rollouts: Rollouts, max_ratio: float
) -> float:
    """Returns the loss; 0.0, and an unchanged model, when the rollouts teach nothing."""
    loss = policy_gradient_loss(model, rollouts, max_ratio)
    if loss is None:
        return 0.0
    clipped_step(model, optimizer, loss)
    return float(loss.detach())

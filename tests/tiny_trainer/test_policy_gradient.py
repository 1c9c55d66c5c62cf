from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from trainer_integration.tiny_trainer.addition import split
from trainer_integration.tiny_trainer.config import RolloutConfig
from trainer_integration.tiny_trainer.optimizer import build_optimizer
from trainer_integration.tiny_trainer.policy_gradient import group_advantages, policy_gradient_loss, policy_gradient_step
from trainer_integration.tiny_trainer.rollouts import Rollouts, RolloutSampler
from trainer_integration.tiny_trainer.sampling import answer_log_probs


def sampled(model: Qwen3ForCausalLM, rewards: list[list[float]], *, shift: float = 0.0) -> Rollouts:
    """Real rollouts with rewards of our choice, by a behaviour whose log-probabilities are lower by `shift`."""
    config = RolloutConfig(prompts=len(rewards), samples=len(rewards[0]))
    made = RolloutSampler(split(0).train, config, seed=0).rollouts(model, version=0)
    return Rollouts(
        version=0,
        questions=made.questions,
        answers=made.answers,
        log_probs=made.log_probs - shift,
        rewards=torch.tensor(rewards).flatten(),
    )


def gradient(model: Qwen3ForCausalLM, rollouts: Rollouts, max_ratio: float) -> Tensor:
    loss = policy_gradient_loss(model, rollouts, max_ratio)
    assert loss is not None
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def test_advantages_are_normalised_within_a_question() -> None:
    advantages = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]]))
    assert advantages.mean(dim=1).abs().max() < 1e-5
    assert advantages[0].tolist() == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3, abs=1e-4)
    assert advantages[1].tolist() == [0.0] * 4


def test_a_step_makes_rewarded_answers_likelier_and_the_others_less_likely(model: Qwen3ForCausalLM) -> None:
    rollouts = sampled(model, [[1.0, 0.0, 0.0, 0.0]] * 8)
    before = answer_log_probs(model, rollouts.questions, rollouts.answers).detach().sum(dim=1)
    policy_gradient_step(model, build_optimizer(model, 1e-3), rollouts, max_ratio=2.0)
    change = answer_log_probs(model, rollouts.questions, rollouts.answers).detach().sum(dim=1) - before
    right = rollouts.rewards == 1
    assert change[right].mean() > 0
    assert change[right].mean() > change[~right].mean()


def test_the_importance_ratio_corrects_for_older_weights_up_to_its_bound(model: Qwen3ForCausalLM) -> None:
    rewards = [[1.0, 0.0, 0.0, 1.0]] * 4
    on_policy = gradient(model, sampled(model, rewards), max_ratio=2.0)
    shifted = gradient(model, sampled(model, rewards, shift=math.log(1.5)), max_ratio=2.0)
    far = gradient(model, sampled(model, rewards, shift=math.log(50.0)), max_ratio=2.0)
    torch.testing.assert_close(shifted, 1.5 * on_policy, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(far, 2.0 * on_policy, rtol=1e-3, atol=1e-4)


def test_rollouts_that_teach_nothing_leave_the_model_as_it_is(model: Qwen3ForCausalLM) -> None:
    before = [parameter.clone() for parameter in model.parameters()]
    loss = policy_gradient_step(model, build_optimizer(model, 1e-3), sampled(model, [[0.0] * 4, [1.0] * 4]), max_ratio=2.0)
    assert loss == 0.0
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_questions_without_a_difference_only_dilute_the_gradient(model: Qwen3ForCausalLM) -> None:
    mixed = sampled(model, [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    full = answer_log_probs(model, mixed.questions, mixed.answers)
    chosen = (mixed.log_probs != 0).float()
    weight = group_advantages(mixed.rewards.view(2, 4)).view(-1, 1)
    expected = torch.autograd.grad(-(weight * full * chosen).sum() / chosen.sum(), list(model.parameters()))
    torch.testing.assert_close(
        gradient(model, mixed, max_ratio=2.0), torch.cat([g.flatten() for g in expected]), rtol=1e-3, atol=1e-4
    )

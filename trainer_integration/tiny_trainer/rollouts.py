"""A batch of answers, all sampled from one version of the weights, which the batch names."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from trainer_integration.tiny_trainer.addition import Pair
from trainer_integration.tiny_trainer.config import RolloutConfig
from trainer_integration.tiny_trainer.sampling import sample
from trainer_integration.tiny_trainer.tokens import encode_questions, rewards_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """`questions` [n, 7]; `answers` and behaviour `log_probs` [n * samples, tokens]; `rewards` [n * samples]."""

    version: int
    questions: Tensor
    answers: Tensor
    log_probs: Tensor
    rewards: Tensor

    def to_arrays(self) -> dict[str, Any]:
        """A message between processes, of plain bytes: a tensor would travel as a descriptor that dies with its sender."""
        return {
            "version": self.version,
            "questions": self.questions.numpy().astype(np.int8),
            "answers": self.answers.numpy().astype(np.int8),
            "log_probs": self.log_probs.numpy(),
            "rewards": self.rewards.numpy(),
        }

    @classmethod
    def from_arrays(cls, message: dict[str, Any]) -> Rollouts:
        return cls(
            version=message["version"],
            questions=torch.from_numpy(message["questions"]).long(),
            answers=torch.from_numpy(message["answers"]).long(),
            log_probs=torch.from_numpy(message["log_probs"]),
            rewards=torch.from_numpy(message["rewards"]),
        )


class RolloutSampler:
    """Draws questions from `pairs` and answers them; the order of both repeats with the seed."""

    def __init__(self, pairs: Sequence[Pair], config: RolloutConfig, seed: int) -> None:
        self._pairs, self._config = pairs, config
        self._draw = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)

    def rollouts(self, model: Qwen3ForCausalLM, version: int) -> Rollouts:
        pairs = self._draw.sample(self._pairs, self._config.prompts)
        questions = encode_questions(pairs)
        answers, log_probs = sample(model, questions, samples=self._config.samples, temperature=1.0, generator=self._generator)
        repeated = [pair for pair in pairs for _ in range(self._config.samples)]
        rewards = rewards_of(repeated, answers)
        return Rollouts(version=version, questions=questions, answers=answers, log_probs=log_probs, rewards=rewards)

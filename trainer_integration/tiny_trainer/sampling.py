"""A batch of answers costs one prefill a question and one short forward a token, and keeps each token's log-probability.

The samples of a question share its prefill, here and, with gradients, in `answer_log_probs`. Questions have one length:
no padding on the left, no attention mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM

from trainer_integration.tiny_trainer.addition import Pair
from trainer_integration.tiny_trainer.tokens import EOS, MAX_NEW_TOKENS, PAD, encode_questions, rewards_of


def sample(
    model: Qwen3ForCausalLM, questions: Tensor, *, samples: int, temperature: float, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Answers and their log-probabilities, both [questions * samples, MAX_NEW_TOKENS], the samples of a question in a row.

    Temperature 0 is greedy. After `<eos>` tokens are `<pad>` and log-probabilities 0.
    """
    with torch.no_grad():
        logits, cache = _prefill(model, questions, samples)
        answers = torch.full((len(logits), MAX_NEW_TOKENS), PAD)
        log_probs = torch.zeros(answers.shape)
        alive = torch.ones(len(answers), dtype=torch.bool)
        for position in range(MAX_NEW_TOKENS):
            token, log_prob = _choose(logits, temperature, generator)
            answers[:, position] = torch.where(alive, token, PAD)
            log_probs[:, position] = torch.where(alive, log_prob, 0.0)
            alive &= token != EOS
            if position + 1 == MAX_NEW_TOKENS or not alive.any():
                break
            logits = model(token[:, None], cache=cache, use_cache=True).logits[:, -1]
    return answers, log_probs


def answer_log_probs(model: Qwen3ForCausalLM, questions: Tensor, answers: Tensor) -> Tensor:
    """Log-probabilities, with gradients, of `answers` [questions * samples, tokens], by the model as it is now."""
    first, cache = _prefill(model, questions, len(answers) // len(questions))
    rest = model(answers[:, :-1], cache=cache, use_cache=True).logits
    logits = torch.cat([first[:, None], rest], dim=1)
    return torch.log_softmax(logits, dim=-1).gather(2, answers[:, :, None])[:, :, 0]


def evaluate_exact(model: Qwen3ForCausalLM, pairs: Sequence[Pair]) -> float:
    """The share of `pairs` whose greedy answer is right."""
    answers, _ = sample(model, encode_questions(pairs), samples=1, temperature=0.0)
    return float(rewards_of(pairs, answers).mean())


def _prefill(model: Qwen3ForCausalLM, questions: Tensor, samples: int) -> tuple[Tensor, DynamicCache]:
    cache = DynamicCache(config=model.config)
    logits: Tensor = model(questions, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    cache.batch_repeat_interleave(samples)
    return logits.repeat_interleave(samples, dim=0), cache


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    scores = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    token = torch.multinomial(scores.exp(), 1, generator=generator) if temperature else scores.argmax(-1, keepdim=True)
    return token[:, 0], scores.gather(1, token)[:, 0]

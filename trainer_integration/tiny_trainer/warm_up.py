"""Teaches the fresh model addition by example, and stops at a score, not at a step: half-taught, with room to improve.

Learning comes as a late and sudden jump, so the step at which a given score is reached differs from seed to seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3ForCausalLM

from trainer_integration.tiny_trainer.addition import Pair
from trainer_integration.tiny_trainer.config import WarmUpConfig
from trainer_integration.tiny_trainer.optimizer import build_optimizer, clipped_step, set_learning_rate
from trainer_integration.tiny_trainer.sampling import evaluate_exact
from trainer_integration.tiny_trainer.tokens import MAX_NEW_TOKENS, encode_answers, encode_questions

WarmUpProgress = Callable[[int, float, float], None]


def warm_up(
    model: Qwen3ForCausalLM, pairs: Sequence[Pair], config: WarmUpConfig, *, seed: int, progress: WarmUpProgress
) -> float:
    """Trains on all but the first `probe_size` of `pairs`; returns the last score on those, also when `max_steps` ended it.

    `progress(step, loss, score)` is called at every probe.
    """
    probe, lessons = pairs[: config.probe_size], pairs[config.probe_size :]
    optimizer = build_optimizer(model, config.learning_rate)
    draw = random.Random(seed)
    score = 0.0
    for step in range(1, config.max_steps + 1):
        set_learning_rate(optimizer, config.learning_rate * min(1.0, step / config.ramp_steps))
        loss = _teaching_loss(model, draw.sample(lessons, config.batch_size))
        clipped_step(model, optimizer, loss)
        if step % config.probe_every == 0 or step == config.max_steps:
            score = evaluate_exact(model, probe)
            progress(step, float(loss.detach()), score)
            if score >= config.target_score:
                break
    return score


def _teaching_loss(model: Qwen3ForCausalLM, pairs: Sequence[Pair]) -> Tensor:
    answers = encode_answers(pairs)
    inputs = torch.cat([encode_questions(pairs), answers[:, :-1]], dim=1)
    logits = model(inputs, use_cache=False, logits_to_keep=MAX_NEW_TOKENS).logits
    return functional.cross_entropy(logits.flatten(0, 1), answers.flatten())

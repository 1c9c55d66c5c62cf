"""Fully asynchronous RL, small and real: warm up, then one optimizer step a batch of rollouts, whoever is watching.

`on_step` is called with the live model at step 0 (after the warm-up, before the first RL step) and after every optimizer
step. The loop knows nothing of evaluation: while `on_step` runs, the producer goes on until its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trainer_integration.tiny_trainer.addition import split
from trainer_integration.tiny_trainer.config import Progress, StepInfo, TrainConfig
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer
from trainer_integration.tiny_trainer.optimizer import build_optimizer, set_learning_rate
from trainer_integration.tiny_trainer.policy_gradient import policy_gradient_step
from trainer_integration.tiny_trainer.producer import RolloutProducer
from trainer_integration.tiny_trainer.warm_up import WarmUpProgress, warm_up

OnStep = Callable[[StepInfo], None]
OnProgress = Callable[[Progress], None]


def train(config: TrainConfig, on_step: OnStep, progress: OnProgress = lambda _: None) -> None:
    """Returns after `config.steps` steps; no process is left. What `on_step` raises ends the training and is raised here.

    Not reproducible bit by bit: which weights sample a batch depends on the two processes' speed. The data are.
    Raises ProducerFailed.
    """
    model, tokenizer = build_model(config.seed, hidden=config.hidden, layers=config.layers), build_tokenizer()
    pairs = split(config.seed, config.held_out, config.excluded).train
    with _one_thread(), RolloutProducer(model, pairs, config.rollouts, seed=config.seed) as producer:
        warm_up(model, pairs, config.warm_up, seed=config.seed, progress=_as_progress(config, progress))
        producer.publish(model, 0)
        gate_url = producer.gate_url()
        on_step(StepInfo(step=0, final=config.steps == 0, model=model, tokenizer=tokenizer, gate_url=gate_url))
        optimizer = build_optimizer(model, config.learning_rate)
        for step in range(1, config.steps + 1):
            rollouts = producer.next_rollouts()
            set_learning_rate(optimizer, config.learning_rate * (1 - (step - 1) / config.steps))
            loss = policy_gradient_step(model, optimizer, rollouts, config.max_ratio)
            producer.publish(model, step)
            info = StepInfo(
                step=step,
                final=step == config.steps,
                model=model,
                tokenizer=tokenizer,
                staleness=step - 1 - rollouts.version,
                mean_reward=(reward := float(rollouts.rewards.mean())),
                loss=loss,
                gate_url=gate_url,
            )
            progress(Progress(phase="reinforcement", step=step, total=config.steps, loss=loss, score=reward))
            on_step(info)


def _as_progress(config: TrainConfig, progress: OnProgress) -> WarmUpProgress:
    def report(step: int, loss: float, score: float) -> None:
        progress(Progress(phase="warm_up", step=step, total=config.warm_up.max_steps, loss=loss, score=score))

    return report


@contextmanager
def _one_thread() -> Iterator[None]:
    """Trainer and producer share the machine with whatever evaluates: a core each, and the caller's setting back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

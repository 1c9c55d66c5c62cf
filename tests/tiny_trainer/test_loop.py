from __future__ import annotations

import multiprocessing
from dataclasses import replace

import pytest
import torch

from trainer_integration.tiny_trainer.addition import split
from trainer_integration.tiny_trainer.config import Progress, StepInfo, TrainConfig, WarmUpConfig
from trainer_integration.tiny_trainer.loop import train
from trainer_integration.tiny_trainer.model import build_model
from trainer_integration.tiny_trainer.sampling import evaluate_exact
from trainer_integration.tiny_trainer.warm_up import warm_up


def test_a_small_training_calls_on_step_in_order_with_the_final_one_last() -> None:
    config = TrainConfig.small(steps=3)
    infos: list[StepInfo] = []
    progress: list[Progress] = []
    threads = torch.get_num_threads()
    train(config, infos.append, progress.append)
    assert [(info.step, info.final) for info in infos] == [(0, False), (1, False), (2, False), (3, True)]
    assert infos[0].mean_reward is None
    assert all(info.mean_reward is not None and info.loss is not None for info in infos[1:])
    assert all(0 <= info.staleness <= config.rollouts.queue_size for info in infos)
    assert [item.phase for item in progress] == ["warm_up"] * 3 + ["reinforcement"] * 3
    assert not multiprocessing.active_children()
    assert torch.get_num_threads() == threads


def test_what_on_step_raises_ends_the_training_and_leaves_no_process() -> None:
    def refuse(info: StepInfo) -> None:
        raise LookupError(f"refused at {info.step}")

    with pytest.raises(LookupError, match="refused at 0"):
        train(TrainConfig.small(), refuse)
    assert not multiprocessing.active_children()


def test_a_warm_up_that_does_not_reach_its_score_ends_at_its_last_step() -> None:
    probes: list[int] = []
    config = WarmUpConfig(max_steps=5, batch_size=16, probe_size=16, probe_every=2, target_score=1.0)
    model = build_model(0, hidden=32, layers=2)
    score = warm_up(model, split(0).train, config, seed=0, progress=lambda step, loss, score: probes.append(step))
    assert probes == [2, 4, 5]
    assert score < 1.0


def test_a_warm_up_stops_at_the_first_probe_that_reaches_its_score() -> None:
    probes: list[int] = []
    config = WarmUpConfig(max_steps=50, batch_size=16, probe_size=16, probe_every=2, target_score=0.0)
    model = build_model(0, hidden=32, layers=2)
    warm_up(model, split(0).train, config, seed=0, progress=lambda step, loss, score: probes.append(step))
    assert probes == [2]


@pytest.mark.slow
def test_training_raises_the_score_on_pairs_it_never_saw() -> None:
    config = replace(TrainConfig(), seed=1)
    held_out = split(config.seed, config.held_out).held_out
    scores: dict[int, float] = {}

    def measure(info: StepInfo) -> None:
        if info.step == 0 or info.final:
            scores[info.step] = evaluate_exact(info.model, held_out)

    train(config, measure)
    assert scores[config.steps] > scores[0]
    assert scores[config.steps] >= 0.7

"""The inside of the producer process: wait for a free slot and an open gate, take the newest weights, sample, send, again."""

from __future__ import annotations

import os
import signal
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event, Semaphore
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from infra.processes import die_with_parent
from trainer_integration.gate_server import serve_gate
from trainer_integration.pause_gate import PauseGate
from trainer_integration.tiny_trainer.addition import Pair
from trainer_integration.tiny_trainer.config import RolloutConfig
from trainer_integration.tiny_trainer.rollouts import RolloutSampler
from trainer_integration.tiny_trainer.shared_weights import NEVER, SharedWeights

POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """Sent in place of rollouts by a producer that failed."""

    summary: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerJob:
    """All that the process is given.

    `slots` are the batches it may still be ahead; the trainer gives one back a batch. `gate_sender` tells where the gate is.
    """

    model_config: dict[str, Any]
    pairs: tuple[Pair, ...]
    config: RolloutConfig
    seed: int
    weights: SharedWeights
    sender: Connection[Any, Any]
    gate_sender: Connection[Any, Any]
    slots: Semaphore
    stopping: Event
    parent: int


def produce(job: ProducerJob) -> None:
    """The target of the process. Returns when it was stopped or its parent is gone."""
    die_with_parent(signal.SIGKILL, job.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the trainer reacts, and stops us
    gate = PauseGate()
    try:
        with serve_gate(gate) as url:
            job.gate_sender.send(url)
            _produce(job, gate)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the trainer closed its end: it is done with us
    except Exception as error:  # noqa: BLE001 - raised again in the trainer
        job.sender.send(Crash(summary=f"{type(error).__name__}: {error}", traceback=traceback.format_exc()))


def _produce(job: ProducerJob, gate: PauseGate) -> None:
    torch.set_num_threads(1)
    model = Qwen3ForCausalLM(Qwen3Config.from_dict(job.model_config)).float()
    sampler = RolloutSampler(job.pairs, job.config, job.seed)
    version = NEVER
    while not _done(job):
        version = job.weights.load_newer(model, version)
        if version == NEVER:
            time.sleep(POLL_S)
        elif job.slots.acquire(timeout=POLL_S * 4):
            while not gate.enter(POLL_S * 4):
                if _done(job):
                    return
            try:
                version = job.weights.load_newer(model, version)
                made = sampler.rollouts(model, version)
            finally:
                gate.leave()
            job.sender.send(made.to_arrays())


def _done(job: ProducerJob) -> bool:
    return job.stopping.is_set() or os.getppid() != job.parent

"""What a training run is told, and what it tells back. Free of torch, so that a command line can build it at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainer_integration.tiny_trainer.addition import Pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpConfig:
    """Supervised learning until `target_score` of exact match on `probe_size` training pairs that it does not train on."""

    target_score: float = 0.5
    max_steps: int = 500
    batch_size: int = 128
    learning_rate: float = 2e-3
    ramp_steps: int = 20
    probe_size: int = 256
    probe_every: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """A batch is `prompts` x `samples` answers at temperature 1; at most `queue_size` of them are ahead of the trainer."""

    prompts: int = 64
    samples: int = 8
    queue_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """`steps` of RL after the warm-up. The `held_out` pairs drawn with `seed`, and those `excluded`, are never trained on.

    `learning_rate` is that of the first RL step; it falls in a straight line to nothing. Seen to forget what the warm-up
    taught: 4e-4 at a staleness of 2, and 3e-4 at one of 3.
    """

    seed: int = 0
    steps: int = 150
    learning_rate: float = 3e-4
    max_ratio: float = 2.0
    hidden: int = 128
    layers: int = 3
    held_out: int = 1000
    excluded: tuple[Pair, ...] = ()
    warm_up: WarmUpConfig = WarmUpConfig()
    rollouts: RolloutConfig = RolloutConfig()

    @classmethod
    def small(cls, *, seed: int = 0, steps: int = 3) -> TrainConfig:
        """Runs whole in seconds, for tests of what surrounds the trainer. It answers, and changes, but hardly learns."""
        return cls(
            seed=seed,
            steps=steps,
            hidden=32,
            layers=2,
            warm_up=WarmUpConfig(max_steps=60, batch_size=64, probe_size=64, probe_every=20),
            rollouts=RolloutConfig(prompts=16, samples=8),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """The live model after optimizer step `step` (0: after the warm-up). It changes when `on_step` returns: copy what you keep.

    `staleness` is the number of optimizer steps between the weights that sampled this step's rollouts and the weights that
    learned from them. `mean_reward` and `loss` are of this step's rollouts, None at step 0. `gate_url` is where the
    producer's gate is served.
    """

    step: int
    final: bool
    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast
    staleness: int = 0
    mean_reward: float | None = None
    loss: float | None = None
    gate_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`step` of at most `total` in this phase; `score` is probe exact match in the warm-up, mean reward afterwards."""

    phase: Literal["warm_up", "reinforcement"]
    step: int
    total: int
    loss: float
    score: float

"""When and how a trainer's evaluation happens; every combination that can't be meant is refused before training begins."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from infra.errors import ConfigError
from infra.model import BlackBoxSpec, Suite
from trainer_integration.locations import fault_of_pattern, saved_at
from trainer_integration.outbox import DEPLOYMENT
from trainer_integration.sharded.ranks import Ranks


class DispatchSettings(BaseModel):
    """When a trainer's evaluation happens, and what becomes of points that come faster than they can be measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: str = Field(description="name of the training run; the same name continues its curve")
    suite: Suite
    every: int = Field(ge=1, description="steps between points")
    start_step: int = Field(default=0, ge=0, description="the step that training begins after")
    max_in_flight: int = Field(default=2, ge=1, description="points that may be under way at once")
    overflow_policy: Literal["backpressure", "skip"] = "backpressure"
    backpressure_timeout_s: float = Field(default=600.0, gt=0, description="how long a due step waits for room")
    trust_remote_code: bool = Field(default=False, description="accept checkpoints that bring code of their own")
    reuse_memory: bool = Field(
        default=True, description="keep the memory of one staged model between points: staging into it is several times as fast"
    )
    keep_snapshots: int = Field(default=0, ge=0, description="how many of the run's evaluated snapshots stay in the store")
    save_hf: str | None = Field(
        default=None,
        description="reuse mode: the checkpoints that the trainer saves anyway, `/runs/x/step_{step}` for one, are evaluated "
        "where they lie, and nothing is exported",
    )
    save_interval: int | None = Field(default=None, ge=1, description="reuse mode: steps between those checkpoints")
    baseline_checkpoint: str | None = Field(
        default=None,
        description="what training starts from, a folder, a cached hub id or an s3:// URL: the baseline is measured on it, and "
        "nothing is exported for it",
    )
    black_box: BlackBoxSpec | None = Field(
        default=None, description="a user's own evaluation, which is given each snapshot, instead of a fleet"
    )
    deployment: str = DEPLOYMENT
    deadline_s: float = Field(
        default=3600.0,
        gt=0,
        description="a point is `timeout` without a report so long after its flow's start or, if none ends it, "
        "2 x deadline_s + 60 s after its dispatch",
    )

    @model_validator(mode="after")
    def _reuse_is_whole(self) -> Self:
        if self.save_hf is None:
            if self.save_interval is not None:
                raise ValueError("save_interval is of no use without save_hf: set both, or neither")
            return self
        if fault := fault_of_pattern(self.save_hf, "{step} or {rollout_id}"):
            raise ValueError(f"save_hf {self.save_hf!r} {fault}")
        if self.save_interval is None or self.every % self.save_interval:
            problem = f"every = {self.every} is no multiple of save_interval = {self.save_interval}"
            raise ValueError(
                f"reuse mode evaluates saved checkpoints: {problem}, so not every due step has one; leave save_hf out"
            )
        if self.keep_snapshots:
            raise ValueError(
                "keep_snapshots has no effect on saved checkpoints, which are never deleted: leave it out with save_hf"
            )
        return self

    @property
    def exports(self) -> bool:
        """Whether due steps are exported from the live model, and not read where the trainer saves them."""
        return self.save_hf is None

    def saved_at(self, step: int) -> Path | str | None:
        """Where the trainer saves the checkpoint of `step`, a folder or an s3:// URL; None unless in reuse mode."""
        return None if self.save_hf is None else saved_at(self.save_hf, step)


def refuse_unusable(dispatch: DispatchSettings, has_exporter: bool) -> None:
    """Raises ConfigError for what only the dispatcher can know."""
    if dispatch.exports and not has_exporter:
        raise ConfigError("an exporter is needed to evaluate the live model: give one, or set save_hf and save_interval")


def longest_wait_s(ranks: Ranks) -> float:
    """How long rank 0 can keep the others waiting: half of what their group waits, as they may have come long before it."""
    if ranks.count == 1 or ranks.control is None:
        return math.inf
    import torch

    try:
        options = ranks.control._get_backend(torch.device("cpu")).options
        return float(options._timeout.total_seconds()) / 2
    except (AttributeError, RuntimeError):  # a group of another kind, which does not say
        return math.inf

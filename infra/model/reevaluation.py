"""What a re-evaluation of saved checkpoints is asked for; the descriptions are what the form in the UI shows."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from infra.model.fleets import FleetSpec
from infra.model.points import RUN_NAME
from infra.model.results import BlackBoxSpec

OrderName = Literal["newest", "step", "spread", "target"]
MARKERS = ("COMPLETE", ".complete", "_SUCCESS", "trainer_state.json")


class Target(BaseModel):
    """A score that ends the search once it is reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    dataset: str = Field(description="dataset of the suite, or metric of a black box")
    score: float = Field(
        allow_inf_nan=False,
        description="the first checkpoint, in step order, whose mean score is at least this ends the search",
    )


class Order(BaseModel):
    """Which checkpoints come first, and which are left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    by: OrderName = Field(
        default="newest",
        description="newest: the latest step first; step: the earliest first; spread: every k-th of each root; "
        "target: one after the other in step order, until one reaches the target score",
    )
    every: int = Field(
        default=5,
        ge=1,
        description="spread: 5 evaluates every fifth checkpoint of a root, counted from those that are evaluated, else from "
        "the earliest. If the trainer keeps only the last N, let N be more than this",
    )
    target: Target | None = Field(default=None, title="Target", description="target: what ends the search")

    @model_validator(mode="after")
    def _target_fits(self) -> Self:
        if (self.by == "target") != (self.target is not None):
            raise ValueError("order 'target' needs a target, and no other order has a use for one")
        return self


class Where(BaseModel):
    """On what the checkpoints are measured, and where the results go."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: str | None = Field(
        default=None,
        pattern=RUN_NAME.pattern,
        description="run whose history the points join; default: the name of the root's folder. They have attempts of "
        "their own, so they never take the place of what the training measured",
    )
    store_url: str | None = Field(
        default=None, description="object store of the results, file:///folder or s3://bucket/prefix; default: this machine's"
    )
    fleet: FleetSpec | None = Field(
        default=None, title="Fleet", description="the engines; default: the fleet of this machine's settings"
    )
    black_box: BlackBoxSpec | None = Field(
        default=None, title="Black Box", description="a user's own evaluation, instead of a fleet"
    )
    deadline_s: float = Field(default=3600.0, gt=0, description="one checkpoint is skipped as 'timeout' after so long")
    trust_remote_code: bool = Field(default=False, description="accept checkpoints that bring code of their own")


class Care(BaseModel):
    """How careful to be with checkpoints that may still be written, with failures, and with who else needs the engines."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    settle_s: float = Field(
        default=60.0,
        ge=0,
        description="seconds for which a checkpoint without a marker must be valid and unchanged",
    )
    markers: tuple[str, ...] = Field(
        default=MARKERS,
        description="files that say that the trainer has finished saving, unless a file of the checkpoint is newer",
    )
    tries: int = Field(
        default=3,
        ge=1,
        description="how often a failure that may pass is tried; an invalid checkpoint is not tried again",
    )
    at_once: int = Field(
        default=1,
        ge=1,
        description="how many re-evaluations of the store, of whatever roots and suites, wait or run at a time; a live run's "
        "point goes before those that wait. Triggers in the same second may each submit one more",
    )


class Reevaluation(BaseModel):
    """Everything that one trigger wants."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    roots: tuple[str, ...] = Field(min_length=1, description="folders, or s3://bucket/prefix, that checkpoints are saved in")
    pattern: str | None = Field(
        default=None,
        description="regular expression for the path of a checkpoint below its root, whose group 'step', or first group, is "
        r"the step; for example: run1/step_(\d+)/hf. Default: the usual layouts",
    )
    order: Order = Order()
    limit: int | None = Field(default=None, ge=1, description="submit at most so many; default: all")
    where: Where = Where()
    care: Care = Care()

    @field_validator("pattern")
    @classmethod
    def _finds_a_step(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        if not groups:
            raise ValueError("needs a group that is the step, for example step_(\\d+)")
        return pattern

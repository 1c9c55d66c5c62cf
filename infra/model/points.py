"""A point is one place on a run's curve; its weight version is what an engine must report to be measured there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from infra.errors import ConfigError

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class SkipReason(StrEnum):
    """Why a point has no number. A user's own evaluation may add words of its own (`EvalSkip`)."""

    BUSY = "busy"
    EXPORT_FAILED = "export_failed"
    CKPT_MISSING = "ckpt_missing"
    CKPT_INVALID = "ckpt_invalid"
    SUITE_INVALID = "suite_invalid"
    UNHEALTHY = "unhealthy"
    NO_CAPACITY = "no_capacity"
    PIN_VIOLATION = "pin_violation"
    TIMEOUT = "timeout"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPoint:
    """One place on a run's curve.

    `attempt` tells a resumed or forked run's point from the first one at the same step. `missed` are earlier due
    steps that the trainer jumped over and this point stands for.
    """

    run: Annotated[str, Field(description="name of the training run whose history the point joins")]
    step: Annotated[int, Field(description="step of the trainer at which these weights were made")]
    attempt: Annotated[int, Field(description="0, or a higher number for the same step of a resumed or forked run")] = 0
    final: Annotated[bool, Field(description="true for the last point of the run")] = False
    missed: Annotated[tuple[int, ...], Field(description="earlier due steps that this point stands for")] = ()

    def __post_init__(self) -> None:
        if not RUN_NAME.fullmatch(self.run):
            raise ConfigError(f"run name {self.run!r}: use letters, digits, '.', '_' and '-', at most 100 of them")
        if self.step < 0 or self.attempt < 0:
            raise ConfigError(f"step {self.step} and attempt {self.attempt} of run {self.run} must not be negative")

    @property
    def key(self) -> str:
        """Sorts by step, and is unique within a run."""
        return f"step{self.step:08d}-a{self.attempt}"

    @property
    def name(self) -> str:
        """What people read in the UI; sorts by step there."""
        return f"{self.run} · step {self.step:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """What an engine must report to be measured: unique for (run, step, attempt, snapshot content), never just a step."""

    run: str
    step: int
    attempt: int
    snapshot_digest: str

    @property
    def token(self) -> str:
        return f"{self.run}/{self.step}/{self.attempt}/{self.snapshot_digest[:16]}"

    @classmethod
    def of(cls, point: EvalPoint, snapshot_digest: str) -> Self:
        return cls(run=point.run, step=point.step, attempt=point.attempt, snapshot_digest=snapshot_digest)

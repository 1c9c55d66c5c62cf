"""What an evaluation is asked for, and what it gives: samples, scores, and one record a point."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from infra.errors import ConfigError
from infra.model.comparisons import Comparison
from infra.model.fleets import EngineProof, FleetSpec
from infra.model.ledger import LedgerTry
from infra.model.points import EvalPoint
from infra.model.snapshots import SnapshotRef, SnapshotSource
from infra.model.suites import Suite

RECORD_FORMAT = 1  # of a record's JSON; records that were written before it was noted are of this format too


class SampleOutcome(StrEnum):
    """What became of one sample. The last three could not be graded: they have no reward and never count as zero."""

    OK = "ok"
    TRUNCATED = "truncated"
    NO_ANSWER = "no_answer"
    GRADER_TIMEOUT = "grader_timeout"
    GRADER_ERROR = "grader_error"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response and its grade.

    `reward` is in [0, 1], or None when it could not be graded. `weight_versions` are the tokens that the engine itself
    put on the response. `finish` is why the engine ended it: "stop", or "length" at the limit, however it was graded then.
    """

    problem_id: str
    index: int
    prompt: str
    response: str
    answer: str
    outcome: SampleOutcome
    reward: float | None
    weight_versions: tuple[str, ...]
    engine: str
    completion_tokens: int
    detail: str = ""
    finish: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its standard error (clustered by prompt) and 95% interval [low, high], from `n` prompts.

    `method` says whose interval it is; it is empty in records that were written before it was noted.
    """

    mean: float
    stderr: float
    low: float
    high: float
    n: int
    method: Literal["wilson", "t", ""] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Completion tokens of the `n` responses that came, truncated ones included: quantiles, and the longest."""

    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    longest: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetResult:
    """A dataset's score at one point.

    `score` is None when nothing could be graded, or too little: `no_score` then says how much. `coverage` is the graded share
    of all samples, and [`worst`, `best`] what the mean would be if all ungraded ones were wrong, or right.
    `weight_version_mean` is the mean step that the engines reported, `mixed_version_ratio` the share of samples whose response
    spans more than one version.

    `pass_at_k` is the chance that one of k responses is right (reward 1), `best_at_k` the expected best reward of k, noted
    where rewards are not just 0 and 1; each has k up to the dataset's own `samples_per_prompt`. `score_completed` leaves out
    truncated responses, `repetition_ratio` is the share of responses that end in a loop. Records written before these were
    noted have their defaults: `samples_per_prompt` is 0 there. `bad_rows` of the data could not be used and were passed
    over; `too_long` prompts did not fit into the context, with room for a response, and were refused. `digest` is of what was
    asked, as it was read for this, and of how it was graded.
    """

    dataset: str
    score: Estimate | None
    coverage: float
    worst: float
    best: float
    n_prompts: int
    n_samples: int
    outcomes: dict[str, int]
    truncated_ratio: float
    weight_version_mean: float
    mixed_version_ratio: float
    completion_tokens: int
    duration_seconds: float
    samples_location: str
    samples_per_prompt: int = 0
    score_completed: Estimate | None = None
    pass_at_k: dict[int, Estimate] = field(default_factory=dict)
    best_at_k: dict[int, Estimate] = field(default_factory=dict)
    lengths: Lengths | None = None
    repetition_ratio: float | None = None
    no_score: str = ""
    bad_rows: int = 0
    too_long: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """The record of a measured point; `duration_seconds` counts from the flow's own start, not from the queue.

    `snapshot_digest` is None for a point that was measured on the trainer's own engines, whose content nobody looked at.
    `metrics` are a black box's, which has no `results` and no `proofs`. `comparisons` are with the points that had been
    measured by then, of which, this one included, there were `points_so_far` with the same suite digest.
    """

    point: EvalPoint
    suite: str
    suite_digest: str
    snapshot_digest: str | None
    weight_version: str
    proofs: tuple[EngineProof, ...]
    results: tuple[DatasetResult, ...]
    lag_steps: int
    export_time_seconds: float
    duration_seconds: float
    phases: dict[str, float]
    finished_at: str
    metrics: dict[str, float] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    points_so_far: int = 0
    kind: Literal["report"] = "report"
    format: int = RECORD_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedPoint:
    """The record of a point that has no number, and why."""

    point: EvalPoint
    suite: str
    reason: str
    message: str
    export_time_seconds: float
    finished_at: str
    kind: Literal["skip"] = "skip"
    format: int = RECORD_FORMAT


PointRecord = Annotated[EvalReport | SkippedPoint, Field(discriminator="kind")]


class BlackBoxSpec(BaseModel):
    """A user's own evaluation: a CheckpointEvalFn class, by import path, and what it is made with."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    function: str = Field(description="package.module.Name or package.module:Name")
    settings: dict[str, Any] = Field(default_factory=dict, description="given to the class")


class EvalRequest(BaseModel):
    """All that crosses from training to evaluation: which point, where its weights are, what to measure and on what."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    point: EvalPoint = Field(title="Point", description="run, step and attempt of the point")
    source: SnapshotSource = Field(title="Source", description="where the weights are")
    suite: Suite = Field(title="Suite", description="what to measure")
    fleet: FleetSpec = Field(default=FleetSpec(), title="Fleet", description="the engines that serve the weights")
    black_box: BlackBoxSpec | None = Field(
        default=None, title="Black Box", description="a user's own evaluation, instead of a fleet"
    )
    store_url: str = Field(description="object store: file:///folder or s3://bucket/prefix")
    trust_remote_code: bool = Field(default=False, description="accept a checkpoint that brings code of its own")
    keep_snapshots: int = Field(default=0, ge=0, description="how many retired snapshots of the run stay in the store")
    export_time_seconds: float = Field(default=0.0, ge=0, description="how long the training loop waited for staging")
    deadline_s: float = Field(default=3600.0, gt=0, description="the point is skipped as 'timeout' after so long")
    ledger: LedgerTry | None = Field(
        default=None,
        title="Ledger",
        description="which try of a re-evaluation this is; none for any other point",
    )

    @property
    def priority(self) -> int:
        """Of those that wait for one fleet, the lower number goes first: a live run's point before a re-evaluation."""
        return 0 if self.ledger is None else 1

    @model_validator(mode="after")
    def _one_backend(self) -> Self:
        if self.black_box is None and not self.suite.datasets:
            raise ConfigError(f"suite {self.suite.name} has no datasets: there is nothing to measure")
        if self.black_box is not None and self.fleet.model_dump() != FleetSpec().model_dump():
            raise ConfigError(
                f"fleet {self.fleet.name} and black box {self.black_box.function} exclude each other: engines are leased, "
                "or the black box brings its own"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A snapshot that was given to a black box as a folder: what that loaded, nobody has looked at."""

    snapshot: SnapshotRef

    @property
    def token(self) -> str:
        return self.snapshot.version.token

    @property
    def proofs(self) -> tuple[EngineProof, ...]:
        return ()

"""The vocabulary: each concept Pinpoint speaks of has exactly one class here, and none of them can be changed once made.

Data runs one way: `EvalPoint -> Snapshot -> FleetLease -> PinnedFleet -> DatasetResult -> EvalReport`. This module
imports nothing of Pinpoint but its errors, so that everything else may import it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from infra.errors import ConfigError, PinViolation

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class SkipReason(StrEnum):
    """Why a point has no number. A user's own evaluation may add words of its own (`EvalSkip`)."""

    BUSY = "busy"
    EXPORT_FAILED = "export_failed"
    CKPT_MISSING = "ckpt_missing"
    CKPT_INVALID = "ckpt_invalid"
    UNHEALTHY = "unhealthy"
    NO_CAPACITY = "no_capacity"
    PIN_VIOLATION = "pin_violation"
    TIMEOUT = "timeout"
    CRASHED = "crashed"


class SampleOutcome(StrEnum):
    """What became of one sample. The last three could not be graded: they have no reward and never count as zero."""

    OK = "ok"
    TRUNCATED = "truncated"
    NO_ANSWER = "no_answer"
    GRADER_TIMEOUT = "grader_timeout"
    GRADER_ERROR = "grader_error"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPoint:
    """One place on a run's curve.

    `attempt` tells a resumed or forked run's point from the first one at the same step. `missed` are earlier due
    steps that the trainer jumped over and this point stands for.
    """

    run: str
    step: int
    attempt: int = 0
    final: bool = False
    missed: tuple[int, ...] = ()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a snapshot: its size in bytes and the xxh3-128 hex digest of its content."""

    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor of a snapshot: safetensors dtype name, shape, the file that holds it, xxh3-128 of its raw bytes."""

    dtype: str
    shape: tuple[int, ...]
    file: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a complete snapshot consists of. It is written last: a prefix without one is not a snapshot."""

    run: str
    step: int
    attempt: int
    made_by: str
    files: dict[str, FileEntry]
    tensors: dict[str, TensorEntry]
    snapshot_digest: str
    format: Literal[1] = 1

    @property
    def n_bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())


class SnapshotSource(BaseModel):
    """Where a point's weights are before export: a folder in HF layout, as a local path.

    `staged` folders were made for this point alone and are Pinpoint's to export and delete; others are somebody's
    checkpoint, read in place and never deleted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str = Field(description="local folder in Hugging Face layout")
    staged: bool = Field(default=False, description="true if the folder was made for this point and is ours to delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRef:
    """A complete snapshot: `location` is the URL of its folder, `owned` says that its evaluation must delete it."""

    point: EvalPoint
    location: str
    manifest: Manifest
    owned: bool

    @property
    def version(self) -> WeightVersion:
        return WeightVersion.of(self.point, self.manifest.snapshot_digest)


class FleetSpec(BaseModel):
    """The engines that evaluation leases through Ray."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(default="eval", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="engines are found again by it")
    num_engines: int = Field(default=2, ge=1, description="engines, each with its own copy of the weights")
    cpus_per_engine: float = Field(default=1.0, gt=0, description="CPUs that Ray reserves for each engine")
    bind: Literal["loopback", "node"] = Field(
        default="loopback",
        description="where engines listen: 127.0.0.1, or their node's address, if flows run elsewhere",
    )
    max_running_requests: int = Field(default=64, ge=1, description="requests an engine decodes at once")
    boot_timeout_s: float = Field(default=180.0, gt=0, description="seconds for engines to be placed and to come up")
    lease_timeout_s: float = Field(default=1800.0, gt=0, description="seconds to wait while another point has the fleet")
    lease_ttl_s: float = Field(default=60.0, gt=0, description="seconds after which a holder that died has lost the fleet")
    idle_timeout_s: float = Field(default=600.0, gt=0, description="seconds without a lease until the engines end")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRef:
    """One engine of a leased fleet, and the local folder from which it must load the snapshot."""

    name: str
    base_url: str
    pid: int
    checkpoint_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLease:
    """The right of one flow to use a fleet until it expires; `epoch` grows with every lease and fences older holders."""

    fleet: str
    epoch: int
    holder: str
    ttl_s: float
    engines: tuple[EngineRef, ...]
    api_key: str = field(repr=False)


class ProofLevel(StrEnum):
    """How an engine's content was proved, beyond the label it reports."""

    CONTENT = "content"
    AGREEMENT = "agreement"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProof:
    """What one engine said after its load.

    `content`: the checksum of every tensor it holds equals the manifest's. `agreement`: its checksum, computed by the
    engine's own method, equals the other engines'.
    """

    engine: str
    reported_version: str
    checksum: str
    level: ProofLevel
    load_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFleet:
    """A leased fleet of which every engine has proved that it serves `snapshot`; it can't be made without the proofs."""

    lease: FleetLease
    snapshot: SnapshotRef
    proofs: tuple[EngineProof, ...]

    def __post_init__(self) -> None:
        expected = self.version.token
        reported = {proof.engine: proof.reported_version for proof in self.proofs}
        unproved = {engine.name: reported.get(engine.name, "nothing") for engine in self.lease.engines}
        wrong = {name: version for name, version in unproved.items() if version != expected}
        if wrong or not self.lease.engines:
            raise PinViolation(f"not pinned to {expected}: {wrong or 'no engines'}", expected=expected, reported=wrong)
        checksums = {proof.engine: proof.checksum for proof in self.proofs}
        if len(set(checksums.values())) != 1:
            raise PinViolation(f"engines hold different weights: {checksums}", expected=expected, reported=checksums)

    @property
    def version(self) -> WeightVersion:
        return self.snapshot.version


class Sampling(BaseModel):
    """How responses are drawn. Temperature 0 is greedy."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1, description="-1 keeps all")
    min_p: float = Field(default=0.0, ge=0, le=1)
    max_new_tokens: int = Field(default=256, ge=1)
    stop: tuple[str, ...] = ()


class ReasoningGymSource(BaseModel):
    """A procedural task family of the `reasoning-gym` package; the same seed gives the same items."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    reasoning_gym: str = Field(description="name of the family, e.g. basic_arithmetic")
    size: int = Field(default=100, ge=1)
    seed: int = 0
    config: dict[str, float | int | bool | str | list[str] | list[int]] = {}


class DatasetSpec(BaseModel):
    """One dataset of a suite: where its rows are, how a row becomes a prompt, how a response is drawn and graded."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    source: str | ReasoningGymSource = Field(description="JSONL file (relative to the suite file), or a reasoning-gym family")
    prompt_key: str = "prompt"
    answer_key: str = "answer"
    prompt_pattern: str | None = Field(
        default=None, description="regex found in the row's prompt; its named groups are fields of prompt_template too"
    )
    prompt_template: str | None = Field(default=None, description="Python format string over the row's fields")
    apply_chat_template: bool = Field(default=False, description="render the prompt with the snapshot's chat template")
    answer_pattern: str | None = Field(default=None, description="regex; group 1, or the match, is the answer to grade")
    grader: Literal["exact", "numeric", "contains", "reasoning_gym"] = "exact"
    samples_per_prompt: int = Field(default=1, ge=1)
    limit: int | None = Field(default=None, ge=1, description="use only the first so many rows")
    sampling: Sampling = Sampling()

    @field_validator("answer_pattern", "prompt_pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.grader == "reasoning_gym" and isinstance(self.source, str):
            raise ValueError("grader 'reasoning_gym' needs a reasoning_gym source")
        if self.prompt_pattern is not None and self.prompt_template is None:
            raise ValueError("prompt_pattern needs a prompt_template that uses its named groups")
        return self


class Suite(BaseModel):
    """What an evaluation measures. File sources are absolute paths once the suite has been loaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    datasets: Annotated[tuple[DatasetSpec, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [dataset.name for dataset in self.datasets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"dataset names used twice: {', '.join(twice)}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of a dataset, ready to be asked; `entry` is the row as it was read."""

    id: str
    prompt: str
    answer: str
    entry: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response and its grade.

    `reward` is in [0, 1], or None when it could not be graded. `weight_versions` are the tokens that the engine itself
    put on the response.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its standard error (clustered by prompt) and 95% interval [low, high], from `n` prompts."""

    mean: float
    stderr: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetResult:
    """A dataset's score at one point.

    `score` is None when nothing could be graded. `coverage` is the graded share of all samples, and [`worst`, `best`]
    what the mean would be if all ungraded ones were wrong, or right. `weight_version_mean` is the mean step that the
    engines reported, `mixed_version_ratio` the share of samples whose response spans more than one version.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """The record of a measured point; `duration_seconds` counts from the flow's own start, not from the queue."""

    point: EvalPoint
    suite: str
    suite_digest: str
    snapshot_digest: str
    weight_version: str
    proofs: tuple[EngineProof, ...]
    results: tuple[DatasetResult, ...]
    lag_steps: int
    export_time_seconds: float
    duration_seconds: float
    phases: dict[str, float]
    finished_at: str
    kind: Literal["report"] = "report"


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


PointRecord = Annotated[EvalReport | SkippedPoint, Field(discriminator="kind")]


class EvalRequest(BaseModel):
    """All that crosses from training to evaluation: which point, where its weights are, what to measure and on what."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    point: EvalPoint = Field(description="run, step and attempt of the point")
    source: SnapshotSource = Field(description="where the weights are")
    suite: Suite = Field(description="what to measure")
    fleet: FleetSpec = FleetSpec()
    store_url: str = Field(description="object store: file:///folder or s3://bucket/prefix")
    export_time_seconds: float = Field(default=0.0, ge=0, description="how long the training loop waited for staging")
    deadline_s: float = Field(default=3600.0, gt=0, description="the point is skipped as 'timeout' after so long")

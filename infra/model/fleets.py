"""Engines: what is asked for, what is leased, and what has proved its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from infra.errors import ConfigError, PinViolation
from infra.model.points import EvalPoint, WeightVersion
from infra.model.snapshots import Manifest, SnapshotRef

SECRETS = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})


class FleetSpec(BaseModel):
    """The engines that evaluation leases through Ray.

    Raises ConfigError, with the numbers, for GPUs that can't be shared out among the engines.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(default="eval", pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="engines are found again by it")
    engine: Literal["embedded", "sglang"] = Field(default="embedded", description="what serves the snapshot")
    num_engines: int = Field(default=2, ge=1, description="engines, each with its own copy of the weights")
    num_gpus: int = Field(default=0, ge=0, description="GPUs of all engines together; 0: engines on CPUs")
    gpus_per_engine: int = Field(default=0, ge=0, description="GPUs of one engine, which is its tensor-parallel size")
    cpus_per_engine: float = Field(default=1.0, gt=0, description="CPUs that Ray reserves for each engine")
    bind: Literal["loopback", "node"] = Field(
        default="loopback",
        description="where engines listen: 127.0.0.1, or their node's address, if flows run elsewhere",
    )
    max_running_requests: int = Field(default=64, ge=1, description="requests that an embedded engine decodes at once")
    rollout_engine_args: dict[str, Any] = Field(
        default_factory=dict, description="server arguments of the trainer's rollout engines, which the fleet inherits"
    )
    engine_args: dict[str, Any] = Field(default_factory=dict, description="server arguments that override the inherited ones")
    engine_python: str | None = Field(
        default=None, description="Python interpreter that runs SGLang, on Ray's nodes; default: Pinpoint's own"
    )
    boot_timeout_s: float = Field(default=180.0, gt=0, description="seconds for engines to be placed and to come up")
    lease_timeout_s: float = Field(default=1800.0, gt=0, description="seconds to wait while another point has the fleet")
    lease_ttl_s: float = Field(default=60.0, gt=0, description="seconds after which a holder that died has lost the fleet")
    hang_timeout_s: float = Field(
        default=60.0, gt=0, description="seconds without an answer to any probe after which an engine counts as dead"
    )
    idle_timeout_s: float = Field(default=600.0, gt=0, description="seconds without a lease until the engines end")

    @field_validator("rollout_engine_args")
    @classmethod
    def _without_secrets(cls, inherited: dict[str, Any]) -> dict[str, Any]:
        """Keys of the rollout engines are of no use to the fleet, and a spec is a flow's parameter that anybody can read."""
        return {name: value for name, value in inherited.items() if name.lstrip("-").replace("-", "_") not in SECRETS}

    @model_validator(mode="after")
    def _share_out(self) -> Self:
        """The number of engines follows from the GPUs where there are any."""
        gpus, each = self.num_gpus, self.gpus_per_engine
        if not gpus and not each:
            return self
        if self.engine == "embedded":
            raise ConfigError(f"fleet {self.name}: the embedded engine has no use for {gpus or each} GPUs, sglang has")
        if not gpus or not each or gpus % each:
            raise ConfigError(f"fleet {self.name}: num_gpus {gpus} is not a multiple of gpus_per_engine {each}")
        if "num_engines" in self.model_fields_set and self.num_engines != gpus // each:
            numbers = f"num_gpus {gpus} and gpus_per_engine {each} make {gpus // each} engines"
            raise ConfigError(f"fleet {self.name}: {numbers}, not {self.num_engines}; leave num_engines out")
        object.__setattr__(self, "num_engines", gpus // each)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The share of an engine on one node: the `rank`-th `of` so many."""

    rank: int = 0
    of: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRef:
    """One engine of a leased fleet, and the local folder from which it must load the snapshot.

    `configuration` is a digest of all that decides how the engine holds a snapshot: what it is, its version, its settings,
    the model's architecture and the hardware. It is empty if nobody knows. `merged` says what the folder holds where that is
    not the snapshot itself, but a LoRA adapter merged into its base.
    """

    name: str
    base_url: str
    pid: int
    checkpoint_path: str
    configuration: str = ""
    merged: Manifest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLease:
    """The right of one flow to use a fleet until it expires; `epoch` grows with every lease and fences older holders.

    `hang_timeout_s` is its fleet's.
    """

    fleet: str
    epoch: int
    holder: str
    ttl_s: float
    engines: tuple[EngineRef, ...]
    api_key: str = field(repr=False)
    hang_timeout_s: float = 60.0


class ProofLevel(StrEnum):
    """How an engine's content was proved, beyond the label it reports."""

    CONTENT = "content"
    RECORDED = "recorded"
    AGREEMENT = "agreement"
    LIVE = "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProof:
    """What one engine said after its load.

    `content`: the checksum of every tensor it holds is the one that the snapshot's own bytes make, and no tensor of the
    snapshot is left over. `recorded`: not so for every tensor, but all checksums are those of the first verified load of this
    snapshot by engines of this configuration. `agreement`: there was no such load; all checksums equal the other engines'.
    `live`: no content was looked at; the engine reported this label before and after, and with every response.
    `tensors` is how many the engine holds, `tensors_proved` of how many the content was proved.
    `canary` are log-probabilities of a fixed text's tokens, `canary_moved` says whether they differ from those under the
    snapshot that the engine served before; None if that is not known.
    """

    engine: str
    reported_version: str
    checksum: str
    level: ProofLevel
    load_seconds: float
    tensors: int = 0
    tensors_proved: int = 0
    canary: tuple[float, ...] = ()
    canary_moved: bool | None = None


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

    @property
    def token(self) -> str:
        return self.version.token

    @property
    def point(self) -> EvalPoint:
        return self.snapshot.point

    @property
    def engines(self) -> tuple[EngineRef, ...]:
        return self.lease.engines

    @property
    def api_key(self) -> str:
        return self.lease.api_key

    @property
    def cache_key(self) -> str:
        """None is needed: loading the snapshot made the engines forget every prompt."""
        return ""

    def step_of(self, token: str) -> int:
        return int(token.split("/")[1])

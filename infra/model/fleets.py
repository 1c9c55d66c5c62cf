"""Engines: what is asked for, what is leased, and what has proved its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.errors import PinViolation
from infra.model.points import WeightVersion
from infra.model.snapshots import SnapshotRef


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

"""The vocabulary: each concept Pinpoint speaks of has exactly one class here, and none of them can be changed once made.

Data runs one way: `EvalPoint -> Snapshot -> FleetLease -> PinnedFleet -> DatasetResult -> EvalReport`. This module
imports nothing of Pinpoint but its errors, so that everything else may import it.
"""

from infra.model.comparisons import Comparison, PairedDifference
from infra.model.fleet_status import EngineStatus, FleetStatus
from infra.model.fleets import EngineProof, EngineRef, FleetLease, FleetSpec, Part, PinnedFleet, ProofLevel
from infra.model.ledger import LedgerKey, LedgerTry
from infra.model.live import LiveEngine, LiveFleet, LiveRequest
from infra.model.points import RUN_NAME, EvalPoint, SkipReason, WeightVersion
from infra.model.reevaluation import Care, Order, Reevaluation, Target, Where
from infra.model.results import (
    BlackBoxSpec,
    DatasetResult,
    Delivered,
    Estimate,
    EvalReport,
    EvalRequest,
    Lengths,
    PointRecord,
    Sample,
    SampleOutcome,
    SkippedPoint,
)
from infra.model.snapshots import BaseModelRef, FileEntry, Manifest, SnapshotRef, SnapshotSource, StagedPart, TensorEntry
from infra.model.suites import (
    Choices,
    DatasetSpec,
    FunctionSource,
    LmEvalSource,
    Message,
    Problem,
    ReasoningGymSource,
    Sampling,
    Suite,
)

Pinned = PinnedFleet | LiveFleet  # what may be asked: its engines have said which weights they serve
PointRequest = EvalRequest | LiveRequest

__all__ = [
    "RUN_NAME",
    "BaseModelRef",
    "BlackBoxSpec",
    "Care",
    "Choices",
    "Comparison",
    "DatasetResult",
    "DatasetSpec",
    "Delivered",
    "EngineProof",
    "EngineRef",
    "EngineStatus",
    "Estimate",
    "EvalPoint",
    "EvalReport",
    "EvalRequest",
    "FileEntry",
    "FleetLease",
    "FleetSpec",
    "FleetStatus",
    "FunctionSource",
    "LedgerKey",
    "LedgerTry",
    "Lengths",
    "LiveEngine",
    "LiveFleet",
    "LiveRequest",
    "LmEvalSource",
    "Manifest",
    "Message",
    "Order",
    "PairedDifference",
    "Part",
    "Pinned",
    "PinnedFleet",
    "PointRecord",
    "PointRequest",
    "Problem",
    "ProofLevel",
    "ReasoningGymSource",
    "Reevaluation",
    "Sample",
    "SampleOutcome",
    "Sampling",
    "SkipReason",
    "SkippedPoint",
    "SnapshotRef",
    "SnapshotSource",
    "StagedPart",
    "Suite",
    "Target",
    "TensorEntry",
    "WeightVersion",
    "Where",
]

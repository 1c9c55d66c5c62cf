"""The vocabulary: each concept Pinpoint speaks of has exactly one class here, and none of them can be changed once made.

Data runs one way: `EvalPoint -> Snapshot -> FleetLease -> PinnedFleet -> DatasetResult -> EvalReport`. This module
imports nothing of Pinpoint but its errors, so that everything else may import it.
"""

from infra.model.fleets import EngineProof, EngineRef, FleetLease, FleetSpec, PinnedFleet, ProofLevel
from infra.model.points import RUN_NAME, EvalPoint, SkipReason, WeightVersion
from infra.model.results import (
    DatasetResult,
    Estimate,
    EvalReport,
    EvalRequest,
    PointRecord,
    Sample,
    SampleOutcome,
    SkippedPoint,
)
from infra.model.snapshots import BaseModelRef, FileEntry, Manifest, SnapshotRef, SnapshotSource, StagedPart, TensorEntry
from infra.model.suites import DatasetSpec, Problem, ReasoningGymSource, Sampling, Suite

__all__ = [
    "RUN_NAME",
    "BaseModelRef",
    "DatasetResult",
    "DatasetSpec",
    "EngineProof",
    "EngineRef",
    "Estimate",
    "EvalPoint",
    "EvalReport",
    "EvalRequest",
    "FileEntry",
    "FleetLease",
    "FleetSpec",
    "Manifest",
    "PinnedFleet",
    "PointRecord",
    "Problem",
    "ProofLevel",
    "ReasoningGymSource",
    "Sample",
    "SampleOutcome",
    "Sampling",
    "SkipReason",
    "SkippedPoint",
    "SnapshotRef",
    "SnapshotSource",
    "StagedPart",
    "Suite",
    "TensorEntry",
    "WeightVersion",
]

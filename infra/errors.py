"""Every error Pinpoint raises on purpose, in one tree; each carries its data and names the remedy.

PinpointError
├── ConfigError            what the user wrote can't be meant
│   ├── UnknownKey         a key or variable nobody reads; names the nearest right one
│   ├── DatasetError       a dataset file that is missing, or a row that can't be read
│   └── PointSkipped       a point that was named has no number: it was skipped
├── ServiceUnreachable     Prefect or Ray does not answer
├── DataUnreachable        the store that a dataset's rows are in does not give them now
├── PortInUse              a local service can't be started on the port asked for
├── StoreError             the object store failed
│   ├── StoreUnreachable
│   ├── StoreDenied        wrong or missing credentials
│   ├── StoreFull          no room for the snapshot
│   ├── StoreStalled       a transfer that did not move for too long
│   ├── RecordDamaged      what lies where a point's record is, is none; a ValueError too
│   └── AlreadyExists      a conditional create lost
├── SnapshotError
│   ├── SnapshotMissing    no manifest, or no checkpoint folder
│   └── SnapshotInvalid    there, but not a complete checkpoint; docs/checkpoints.md has a row for each kind
│       ├── WeightsMissing      no safetensors at all
│       │   └── PickleOnly      only formats that run code when they are opened
│       ├── IndexInvalid        an index that can't be read, or disagrees with its shards
│       ├── ShardMissing        a shard that the index names, or the file names promise
│       ├── ShardUnlisted       a shard of some other save
│       ├── PathOutside         a name or link that leaves the folder, or no plain file
│       ├── FileDamaged         truncated, or not what its name says
│       │   └── SpansBroken     tensors that overlap, leave gaps, or have the wrong length
│       ├── ConfigInvalid       no config, or one that no model can be made of
│       ├── RemoteCodeRefused   needs code of its own, which nobody allowed
│       ├── TensorMissing       the config's model has it, the checkpoint does not
│       │   ├── ExpertMissing   the same, of one expert
│       │   └── HeadMissing     the same, of the output head
│       ├── TensorUnexpected    the checkpoint has it, the config's model does not
│       ├── ShapeMismatch
│       │   └── VocabMismatch   rows that are not the config's `vocab_size`, padding for one
│       ├── TiedWeightsDiffer   two copies of what the config ties, with different values
│       ├── DtypeMismatch       more than one dtype, or not the config's
│       │   └── DtypeUnknown
│       ├── NotFinite           NaN or infinity among the weights
│       ├── TokenizerInvalid    missing, or can't be loaded
│       │   └── TokenizerTooLarge   it gives ids that the model has no row for
│       ├── EosDisagrees        tokenizer, config and generation config end a text differently
│       ├── ChatTemplateMissing
│       └── AdapterInvalid      a LoRA adapter that can't be read, or is of another method
│           └── AdapterUnmatched    it adapts nothing that its base has
├── ExportFailed           the snapshot did not reach the store
│   └── StagingFailed      the live model could not be copied; every rank raises it
├── EngineError
│   ├── EngineDead         a dropped or refused connection
│   ├── EngineTimeout      no answer within the deadline
│   └── EngineRefused      an answer that says no
├── FleetError
│   ├── NoCapacity         the cluster can't place the fleet, or its lease is taken
│   ├── FleetUnhealthy     engines that do not come up
│   ├── FleetHeld          it can't be ended while somebody has it
│   └── LeaseLost          the lease expired or was fenced
├── PinViolation           an engine or a response that is not of the pinned version
├── BlackBoxFailed         a user's own evaluation raised, died, or returned no numbers
├── GraderError            a grader raised, or timed out (`GraderTimeout`)
├── TrainingFailed         the demo's trainer crashed, or ended before all its points had their records
├── SinkFailed             a tracker did not take a run's points; defined in infra/sinks/__init__.py
├── ProducerFailed         the tiny trainer's rollouts ended; defined in trainer_integration/tiny_trainer/producer.py
└── EvalSkip               an attributed skip, also raised by a user's own evaluation function
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any


class PinpointError(Exception):
    """Base of the tree. `str(error)` is one line that names the thing and the remedy; it survives pickling whole."""

    def __reduce__(self) -> tuple[Callable[..., PinpointError], tuple[type[PinpointError], str, dict[str, Any]]]:
        return _rebuild, (type(self), str(self), self.__dict__)


def _rebuild(kind: type[PinpointError], message: str, data: dict[str, Any]) -> PinpointError:
    error = kind.__new__(kind, message)
    error.args = (message,)
    error.__dict__.update(data)
    return error


class ConfigError(PinpointError):
    pass


class UnknownKey(ConfigError):
    def __init__(self, key: str, *, where: str, known: Iterable[str]) -> None:
        self.key, self.where, self.known = key, where, tuple(sorted(known))
        nearest = difflib.get_close_matches(key, self.known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(self.known)}"
        super().__init__(f"unknown key {key!r} in {where}: {hint}")


class DatasetError(ConfigError):
    """A dataset can't be read; `path` and, where one row is at fault, its 1-based `line`: its row, where rows are no lines."""

    def __init__(self, message: str, *, path: str, line: int | None = None, unit: str = "line") -> None:
        self.path, self.line = path, line
        place = path if line is None else f"{path}, {unit} {line}"
        super().__init__(f"{place}: {message}")


class PointSkipped(ConfigError):
    """`point` and `suite` are those of the record, a skip for `reason`; `remedy` says what to name instead."""

    def __init__(self, point: str, *, suite: str, reason: str, message: str, remedy: str = "") -> None:
        self.point, self.suite, self.reason = point, suite, reason
        why = " ".join(f"{reason}: {message}".split())
        said = f"{point} has no number under suite {suite}, it was skipped, {why}"
        super().__init__(f"{said}; {remedy}" if remedy else said)


class ServiceUnreachable(PinpointError):
    def __init__(self, service: str, address: str, remedy: str) -> None:
        self.service, self.address = service, address
        super().__init__(f"{service} does not answer at {address}: {remedy}")


class DataUnreachable(PinpointError):
    pass


class PortInUse(PinpointError):
    def __init__(self, port: int, service: str, setting: str) -> None:
        self.port, self.service = port, service
        super().__init__(f"port {port} is in use, so {service} can't start there: free it, or choose another with {setting}")


class StoreError(PinpointError):
    pass


class StoreUnreachable(StoreError):
    pass


class StoreDenied(StoreError):
    pass


class StoreFull(StoreError):
    pass


class StoreStalled(StoreError):
    pass


class RecordDamaged(StoreError, ValueError):
    """The object at `location` is no record: cut short, overwritten, or of something else."""

    def __init__(self, location: str, fault: str) -> None:
        self.location = location
        remedy = "put it back from a copy, or delete it: the point then has no record"
        super().__init__(f"the record {location} can't be read ({' '.join(fault.split())[:200]}): {remedy}")


class AlreadyExists(StoreError):
    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"{key} exists already")


class SnapshotError(PinpointError):
    pass


class SnapshotMissing(SnapshotError):
    pass


class SnapshotInvalid(SnapshotError):
    """`subject` is the tensor or file at fault."""

    def __init__(self, message: str, *, subject: str) -> None:
        self.subject = subject
        super().__init__(message)


class WeightsMissing(SnapshotInvalid):
    pass


class PickleOnly(WeightsMissing):
    pass


class IndexInvalid(SnapshotInvalid):
    pass


class ShardMissing(SnapshotInvalid):
    pass


class ShardUnlisted(SnapshotInvalid):
    pass


class PathOutside(SnapshotInvalid):
    pass


class FileDamaged(SnapshotInvalid):
    pass


class SpansBroken(FileDamaged):
    pass


class ConfigInvalid(SnapshotInvalid):
    pass


class RemoteCodeRefused(SnapshotInvalid):
    pass


class TensorMissing(SnapshotInvalid):
    pass


class ExpertMissing(TensorMissing):
    pass


class HeadMissing(TensorMissing):
    pass


class TensorUnexpected(SnapshotInvalid):
    pass


class ShapeMismatch(SnapshotInvalid):
    pass


class VocabMismatch(ShapeMismatch):
    pass


class TiedWeightsDiffer(SnapshotInvalid):
    pass


class DtypeMismatch(SnapshotInvalid):
    pass


class DtypeUnknown(DtypeMismatch):
    pass


class NotFinite(SnapshotInvalid):
    pass


class TokenizerInvalid(SnapshotInvalid):
    pass


class TokenizerTooLarge(TokenizerInvalid):
    pass


class EosDisagrees(SnapshotInvalid):
    pass


class ChatTemplateMissing(SnapshotInvalid):
    pass


class AdapterInvalid(SnapshotInvalid):
    pass


class AdapterUnmatched(AdapterInvalid):
    pass


class ExportFailed(PinpointError):
    pass


class StagingFailed(ExportFailed):
    """`ranks` maps each rank that failed to what it raised; it is the same on every rank."""

    def __init__(self, message: str, *, ranks: dict[int, str]) -> None:
        self.ranks = ranks
        super().__init__(message)


class EngineError(PinpointError):
    """`engine` is the base URL of the engine that failed."""

    def __init__(self, message: str, *, engine: str) -> None:
        self.engine = engine
        super().__init__(f"engine {engine}: {message}")


class EngineDead(EngineError):
    pass


class EngineTimeout(EngineError):
    pass


class EngineRefused(EngineError):
    """`status` is the HTTP status of the refusal."""

    def __init__(self, message: str, *, engine: str, status: int) -> None:
        self.status = status
        super().__init__(message, engine=engine)


class FleetError(PinpointError):
    pass


class NoCapacity(FleetError):
    pass


class FleetUnhealthy(FleetError):
    pass


class FleetHeld(FleetError):
    pass


class LeaseLost(FleetError):
    pass


class PinViolation(PinpointError):
    """`reported` maps an engine (or a sample) to the weight version it gave instead of `expected`."""

    def __init__(self, message: str, *, expected: str, reported: dict[str, str]) -> None:
        self.expected, self.reported = expected, reported
        super().__init__(message)


class BlackBoxFailed(PinpointError):
    pass


class GraderError(PinpointError):
    pass


class GraderTimeout(GraderError):
    pass


class TrainingFailed(PinpointError):
    pass


class EvalSkip(PinpointError):
    """This point is not measured, and why: `reason` is a `SkipReason` value or a user's own word."""

    def __init__(self, reason: str, message: str = "") -> None:
        self.reason, self.message = str(reason), message
        super().__init__(f"{self.reason}: {message}" if message else self.reason)

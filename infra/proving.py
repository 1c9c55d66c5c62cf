"""What an engine holds is the snapshot tensor by tensor, or as much of that as can be told is said, and the rest is compared.

Where the engine names the algorithm of its checksums and it is the manifest's, every tensor is compared with the manifest.
SGLang names none: its checksums are reproduced from the snapshot's bytes. A tensor for which that fails is compared with the
engine's peers, with the record of this snapshot's first load, and with what the engine held before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.canary import Scores, agree, moved
from infra.checksum_records import ChecksumRecord, ChecksumRecords
from infra.errors import PinViolation
from infra.model import EngineRef, Manifest, ProofLevel, SnapshotRef
from infra.reproduction import Coverage, reproduce, sources
from infra.store import Store

logger = logging.getLogger(__name__)
MANIFEST_ALGORITHM = "xxh3_128"
# Does what `reproduce` does where the engine's folder is.
Elsewhere = Callable[[EngineRef, Mapping[str, str], Manifest], Awaitable[Coverage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one engine says after its load, and the version that it served before; `canary` is of `infra.canary`."""

    engine: EngineRef
    before: str
    version: str
    checksum: str
    tensors: dict[str, str]
    algorithm: str
    load_seconds: float
    canary: Scores = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How well a holding is proved; `proved` are the engine's tensors whose content is the snapshot's.

    `moved` says whether the canary differs from the one recorded for what the engine served before; None if there is none.
    """

    holding: Holding
    level: ProofLevel
    proved: frozenset[str]
    moved: bool | None = None


async def cover(holdings: Sequence[Holding], snapshot: SnapshotRef, elsewhere: Elsewhere | None) -> dict[str, Coverage]:
    """What can be told of each checksum that is not the manifest's; the snapshot's bytes are read once for engines that agree.

    They are read here if they are here, else `elsewhere`. Raises SnapshotInvalid if they are not what the manifest says.
    """
    coverages: dict[str, Coverage] = {}
    for holding in holdings:
        if holding.algorithm == MANIFEST_ALGORITHM or holding.checksum in coverages:
            continue
        folder = Path(holding.engine.checkpoint_path)
        if await asyncio.to_thread(folder.is_dir):
            coverages[holding.checksum] = await asyncio.to_thread(reproduce, holding.tensors, folder, snapshot.manifest)
        elif elsewhere is not None:
            coverages[holding.checksum] = await elsewhere(holding.engine, holding.tensors, snapshot.manifest)
        else:
            logger.warning("engine %s: %s is on another machine, so its content is not compared", holding.engine.name, folder)
            coverages[holding.checksum] = Coverage(frozenset(), whole=False)
    return coverages


def prove(
    holdings: Sequence[Holding], coverages: Mapping[str, Coverage], snapshot: SnapshotRef, store: Store | None
) -> list[Verdict]:
    """Blocks while it reads the records of earlier loads. Raises PinViolation, naming engine and tensor."""
    reproducible = frozenset[str]().union(*(coverage.proved for coverage in coverages.values()))
    verdicts = []
    for holding in holdings:
        if holding.algorithm == MANIFEST_ALGORITHM:
            _compare_with_manifest(holding, snapshot)
            verdicts.append(Verdict(holding=holding, level=ProofLevel.CONTENT, proved=frozenset(holding.tensors)))
        else:
            verdicts.append(_judge(holding, coverages[holding.checksum], reproducible, snapshot, store))
    agree({holding.engine.name: holding.canary for holding in holdings}, snapshot.version.token)
    return verdicts


def remember(verdicts: Sequence[Verdict], snapshot: SnapshotRef, store: Store) -> None:
    """Keeps what engines of each configuration held; a record that is there already is the one that counts."""
    digests = {name: entry.digest for name, entry in snapshot.manifest.tensors.items()}
    for verdict in verdicts:
        configuration = verdict.holding.engine.configuration
        if configuration and verdict.holding.algorithm != MANIFEST_ALGORITHM:
            held, proved = verdict.holding, tuple(sorted(verdict.proved))
            kept = ChecksumRecord(engine=held.tensors, snapshot=digests, proved=proved, canary=held.canary)
            ChecksumRecords(store, configuration).add(snapshot.manifest.snapshot_digest, kept)


def _compare_with_manifest(holding: Holding, snapshot: SnapshotRef) -> None:
    """Raises PinViolation unless the engine holds exactly the manifest's tensors."""
    held, promised = holding.tensors, {name: entry.digest for name, entry in snapshot.manifest.tensors.items()}
    wrong = sorted(name for name in promised.keys() | held.keys() if promised.get(name) != held.get(name))
    if wrong:
        raise PinViolation(
            f"engine {holding.engine.name} holds other weights than snapshot {snapshot.manifest.snapshot_digest}: "
            f"{len(wrong)} of {len(promised)} tensors differ, the first is {wrong[0]}",
            expected=promised.get(wrong[0], "absent"),
            reported={holding.engine.name: held.get(wrong[0], "absent")},
        )


def _judge(
    holding: Holding, coverage: Coverage, reproducible: frozenset[str], snapshot: SnapshotRef, store: Store | None
) -> Verdict:
    configuration = holding.engine.configuration
    records = ChecksumRecords(store, configuration) if store and configuration else None
    recorded = records.of(snapshot.manifest.snapshot_digest) if records else None
    earlier = records.starting_with("") if records else None
    before = records.starting_with(holding.before.rpartition("/")[2]) if records and "/" in holding.before else None
    if recorded is not None:
        _refuse(holding, _differing(holding, recorded), "is not what it was at the first verified load of this snapshot")
    _refuse(holding, {*reproducible, *(earlier.proved if earlier else ())} - coverage.proved, "is not the snapshot's")
    if before is not None:
        _refuse(holding, _left_behind(holding, before, snapshot) - coverage.proved, f"is still that of {holding.before}")
    level = ProofLevel.CONTENT if coverage.whole else ProofLevel.RECORDED if recorded else ProofLevel.AGREEMENT
    changed = before is not None and before.snapshot != {
        name: entry.digest for name, entry in snapshot.manifest.tensors.items()
    }
    verdict = Verdict(
        holding=holding,
        level=level,
        proved=coverage.proved,
        moved=moved(before.canary, holding.canary) if before is not None and changed else None,
    )
    _listen(verdict)
    return verdict


def _listen(verdict: Verdict) -> None:
    """One that answers as before has not moved, unless its content says that it has: the canary is one text only."""
    if verdict.moved is not False:
        return
    name, holding = verdict.holding.engine.name, verdict.holding
    if verdict.level is ProofLevel.CONTENT:
        logger.warning("engine %s holds %s, and finds the canary as likely as %s", name, holding.version, holding.before)
        return
    raise PinViolation(
        f"engine {name} answers with {holding.version} to the last bit as engines did with {holding.before}: it has not moved",
        expected=holding.version,
        reported={name: holding.before},
    )


def _differing(holding: Holding, recorded: ChecksumRecord) -> set[str]:
    held = holding.tensors
    return {name for name in recorded.engine.keys() | held.keys() if recorded.engine.get(name) != held.get(name)}


def _left_behind(holding: Holding, before: ChecksumRecord, snapshot: SnapshotRef) -> set[str]:
    """Tensors that are as they were, though what the snapshot makes them of has changed; all of it, if that is not known."""
    tensors = snapshot.manifest.tensors
    changed = {name for name, entry in tensors.items() if before.snapshot.get(name) != entry.digest}
    same = [name for name, checksum in holding.tensors.items() if before.engine.get(name) == checksum]
    return {name for name in same if changed & set(sources(name, tensors)) or changed == tensors.keys()}


def _refuse(holding: Holding, wrong: Collection[str], why: str) -> None:
    if wrong:
        name = min(wrong)
        raise PinViolation(
            f"engine {holding.engine.name} holds other weights than {holding.version}: "
            f"{len(wrong)} of {len(holding.tensors)} tensors, the first is {name}, which {why}",
            expected=holding.version,
            reported={holding.engine.name: holding.tensors.get(name, "absent")},
        )

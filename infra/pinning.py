"""No engine is believed: each loads the snapshot, says its version back, and proves what it holds.

Where the engine names the algorithm of its checksums and it is the manifest's, every tensor is compared with the manifest.
An engine that checksums in its own way is compared with its peers: all must hold the same.
"""

from __future__ import annotations

import logging
import time

from infra.concurrency import gather_all
from infra.engines.client import EngineClient
from infra.errors import PinViolation
from infra.model import EngineProof, EngineRef, FleetLease, PinnedFleet, ProofLevel, SnapshotRef

logger = logging.getLogger(__name__)
LOAD_BASE_S = 60.0
LOAD_BYTES_PER_S = 50e6  # a slow disk; the deadline only has to tell slow from stuck
MANIFEST_ALGORITHM = "xxh3_128"


async def pin(lease: FleetLease, snapshot: SnapshotRef) -> PinnedFleet:
    """Loads the snapshot on all engines at once and verifies each.

    Raises:
        PinViolation: an engine reports another version or other content than the snapshot's; says which, and what.
        EngineError: an engine that refuses, drops the connection or does not answer in time.
    """
    proofs = await gather_all(_pin_one(engine, lease.api_key, snapshot) for engine in lease.engines)
    pinned = PinnedFleet(lease=lease, snapshot=snapshot, proofs=tuple(proofs))
    logger.info("pinned %s on %d engines of fleet %s", pinned.version.token, len(proofs), lease.fleet)
    return pinned


async def _pin_one(engine: EngineRef, api_key: str, snapshot: SnapshotRef) -> EngineProof:
    expected = snapshot.version.token
    deadline_s = LOAD_BASE_S + snapshot.manifest.n_bytes / LOAD_BYTES_PER_S
    async with EngineClient(engine.base_url, api_key) as client:
        started = time.monotonic()
        await client.update_weights(engine.checkpoint_path, expected, deadline_s)
        seconds = time.monotonic() - started
        reported = await client.weight_version()
        if reported != expected:
            raise PinViolation(
                f"engine {engine.name} reports version {reported!r} after loading {expected!r}",
                expected=expected,
                reported={engine.name: reported},
            )
        checksum, tensors, algorithm = await client.checksums(deadline_s)
    level = ProofLevel.AGREEMENT
    if algorithm == MANIFEST_ALGORITHM:
        _compare(engine, tensors, snapshot)
        level = ProofLevel.CONTENT
    return EngineProof(engine=engine.name, reported_version=reported, checksum=checksum, level=level, load_seconds=seconds)


def _compare(engine: EngineRef, held: dict[str, str], snapshot: SnapshotRef) -> None:
    """Raises PinViolation unless the engine holds exactly the manifest's tensors."""
    promised = {name: entry.digest for name, entry in snapshot.manifest.tensors.items()}
    wrong = sorted(name for name in promised.keys() | held.keys() if promised.get(name) != held.get(name))
    if wrong:
        raise PinViolation(
            f"engine {engine.name} holds other weights than snapshot {snapshot.manifest.snapshot_digest}: "
            f"{len(wrong)} of {len(promised)} tensors differ, the first is {wrong[0]}",
            expected=promised.get(wrong[0], "absent"),
            reported={engine.name: held.get(wrong[0], "absent")},
        )

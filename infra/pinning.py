"""No engine is believed: each loads the snapshot, says its version back, and proves what it holds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from infra.canary import agree, listen
from infra.concurrency import settle_all
from infra.engines.client import EngineClient
from infra.errors import EngineError, PinViolation
from infra.model import EngineProof, EngineRef, FleetLease, PinnedFleet, SnapshotRef
from infra.proving import Elsewhere, Holding, Verdict, cover, prove, remember
from infra.store import Store

logger = logging.getLogger(__name__)
LOAD_BASE_S = 60.0
LOAD_BYTES_PER_S = 50e6  # a slow disk; the deadline only has to tell slow from stuck


# Gives another engine in the place of one that failed.
Revive = Callable[[EngineRef], Awaitable[EngineRef]]


async def pin(
    lease: FleetLease,
    snapshot: SnapshotRef,
    store: Store | None = None,
    elsewhere: Elsewhere | None = None,
    revive: Revive | None = None,
) -> PinnedFleet:
    """Loads the snapshot on all engines at once and verifies each.

    `store` keeps what engines held at first loads; `elsewhere` reads the snapshot on a node whose files are not here. An engine
    that fails at its load is tainted: it gets one more chance, as the process that `revive` puts in its place. Returns or
    raises only when no engine loads any more.

    Raises:
        PinViolation: an engine reports another version or other content than the snapshot's; says which, and what.
        EngineError: an engine that refuses, drops the connection or does not answer in time.
        SnapshotInvalid: the folder that the engines read is not what the manifest says.
    """
    holdings = await settle_all(_loaded(engine, lease.api_key, snapshot, revive) for engine in lease.engines)
    lease = replace(lease, engines=tuple(holding.engine for holding in holdings))
    loaded = as_loaded(snapshot, lease.engines)
    coverages = await cover(holdings, loaded, elsewhere)
    verdicts = await asyncio.to_thread(prove, holdings, coverages, loaded, store)
    pinned = PinnedFleet(lease=lease, snapshot=snapshot, proofs=tuple(_proof(verdict) for verdict in verdicts))
    if store is not None:
        await asyncio.to_thread(remember, verdicts, loaded, store)
    logger.info("pinned %s on %d engines of fleet %s", pinned.version.token, len(verdicts), lease.fleet)
    return pinned


def as_loaded(snapshot: SnapshotRef, engines: Sequence[EngineRef]) -> SnapshotRef:
    """What engines must hold: the snapshot, or of an adapter what merging it into its base has made, the same on all."""
    merged = {engine.name: engine.merged for engine in engines if engine.merged is not None}
    if snapshot.manifest.base is None:
        return snapshot
    digests = {name: manifest.snapshot_digest for name, manifest in merged.items()}
    if len(merged) != len(engines) or len(set(digests.values())) != 1:
        missing = {engine.name: digests.get(engine.name, "nothing merged") for engine in engines}
        raise PinViolation(f"engines would load different merges: {missing}", expected="one merge", reported=missing)
    return replace(snapshot, manifest=next(iter(merged.values())))


async def rejoin(
    pinned: PinnedFleet, engine: EngineRef, revive: Revive, store: Store | None = None, elsewhere: Elsewhere | None = None
) -> tuple[EngineRef, EngineProof]:
    """Another engine in the place of a lost one, proved to hold what the pinned fleet holds; raises as `pin`."""
    revived = await revive(engine)
    alone = await pin(replace(pinned.lease, engines=(revived,)), pinned.snapshot, store, elsewhere)
    [proof], before = alone.proofs, pinned.proofs[0]
    if proof.checksum != before.checksum:
        held = {before.engine: before.checksum, engine.name: proof.checksum}
        raise PinViolation(f"engine {engine.name} came back with other weights: {held}", expected=pinned.token, reported=held)
    agree(
        {"the others": next((one.canary for one in pinned.proofs if one.canary), ()), engine.name: proof.canary}, pinned.token
    )
    return revived, proof


async def _loaded(engine: EngineRef, api_key: str, snapshot: SnapshotRef, revive: Revive | None) -> Holding:
    try:
        return await _load(engine, api_key, snapshot)
    except EngineError as error:
        if revive is None:
            raise
        logger.warning("engine %s failed at its load and is replaced: %s", engine.name, error)
    return await _load(await revive(engine), api_key, snapshot)


async def _load(engine: EngineRef, api_key: str, snapshot: SnapshotRef) -> Holding:
    expected = snapshot.version.token
    manifest = engine.merged or snapshot.manifest
    deadline_s = LOAD_BASE_S + manifest.n_bytes / LOAD_BYTES_PER_S
    async with EngineClient(engine.base_url, api_key) as client:
        before = await client.weight_version()
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
        await client.resume()
        heard = await listen(client, manifest, expected)
        checksum, tensors, algorithm = await client.checksums(deadline_s)
    return Holding(
        engine=engine,
        before=before,
        version=reported,
        checksum=checksum,
        tensors=tensors,
        algorithm=algorithm,
        load_seconds=seconds,
        canary=heard,
    )


def _proof(verdict: Verdict) -> EngineProof:
    holding = verdict.holding
    return EngineProof(
        engine=holding.engine.name,
        reported_version=holding.version,
        checksum=holding.checksum,
        level=verdict.level,
        load_seconds=holding.load_seconds,
        tensors=len(holding.tensors),
        tensors_proved=len(verdict.proved),
        canary=holding.canary,
        canary_moved=verdict.moved,
    )

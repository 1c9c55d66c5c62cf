"""The flow's side of a fleet: reach Ray, wait for a turn, hold the lease while working, give it back whatever happens."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from infra.concurrency import first_failure
from infra.config import load_settings
from infra.engines.arguments import resolve
from infra.errors import LeaseLost, NoCapacity, ServiceUnreachable
from infra.fleet.deadlines import forming_s
from infra.model import EngineRef, FleetLease, FleetSpec, Manifest, SnapshotRef
from infra.reproduction import Coverage

logger = logging.getLogger(__name__)
NAMESPACE, PREFIX = "pinpoint", "fleet-"
CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 30.0
TURN_POLL_S = 0.5
WARDEN_TIMEOUT_S = 60.0  # for another warden in the place of one whose node was lost
READ_BYTES_PER_S = 50e6
_JOINING = threading.Lock()  # Ray's own init fails where two threads call it
REVIVE_TIMEOUT_S = 3600.0  # the warden has deadlines of its own


def connect(address: str | None = None) -> None:
    """Joins the Ray cluster at `address` (host:port), by default the one of the settings; twice is harmless, at once too.

    Raises ServiceUnreachable at once where Ray's own client would wait for a minute.
    """
    with _JOINING:
        _connect(address)


def _connect(address: str | None) -> None:
    import ray

    if ray.is_initialized():
        return
    address = address or load_settings().ray_address
    if not address:
        raise ServiceUnreachable("Ray", "(no address)", "set PINPOINT_RAY_ADDRESS, or start one with `pinpoint up`")
    check_ray(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError) as error:
        remedy = "is it a Ray GCS, of this version, and is RAY_AUTH_TOKEN_PATH the token of that cluster?"
        raise ServiceUnreachable("Ray", address, f"{remedy} ({' '.join(str(error).split())[:200]})") from error


def check_ray(address: str) -> None:
    """Raises ServiceUnreachable unless something accepts connections at `address` now."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError):
        raise ServiceUnreachable("Ray", address, "start it (`pinpoint up`), or correct PINPOINT_RAY_ADDRESS") from None


async def acquire(spec: FleetSpec, snapshot: SnapshotRef, holder: str, priority: int = 0) -> FleetLease:
    """Waits for the fleet's turn and gives the lease, with every engine up; a lower `priority` number goes first.

    Raises:
        ConfigError: an engine argument that the engine does not have, or that is not the user's to set.
        NoCapacity: the cluster can't place it, or another holder kept it for `lease_timeout_s`.
        FleetUnhealthy: an engine did not come up.
    """
    resolve(spec)
    await asyncio.to_thread(connect)
    deadline, gone = time.monotonic() + spec.lease_timeout_s, time.monotonic() + WARDEN_TIMEOUT_S
    while True:
        try:
            asked = warden(spec.name).lease.remote(spec, snapshot, holder, priority)
            answer = await call(asked, forming_s(spec, snapshot) + CALL_TIMEOUT_S)
        except LeaseLost:
            if time.monotonic() > gone:
                raise
            await asyncio.sleep(TURN_POLL_S)  # Ray gives its name to another when it has noticed
            continue
        if isinstance(answer, FleetLease):
            logger.info("fleet %s leased to %s, epoch %d", spec.name, holder, answer.epoch)
            return answer
        if time.monotonic() > deadline:
            raise NoCapacity(f"fleet {spec.name} was held by {answer} for all of {spec.lease_timeout_s:g} s")
        await asyncio.sleep(TURN_POLL_S)


@asynccontextmanager
async def held(lease: FleetLease) -> AsyncIterator[None]:
    """Renews the lease while the body runs, ends the body with LeaseLost if that fails, gives back on every outcome."""
    try:
        with first_failure():
            async with asyncio.TaskGroup() as group:
                keeper = group.create_task(_keep(lease, lease.ttl_s / 4))
                yield
                keeper.cancel()
    finally:
        with anyio.move_on_after(CALL_TIMEOUT_S, shield=True):
            await give_back(lease)


async def give_back(lease: FleetLease) -> None:
    """Never raises for a fleet that is gone: then there is nothing to give back."""
    import ray

    try:
        await call(existing_warden(lease.fleet).give_back.remote(lease.epoch), CALL_TIMEOUT_S)
    except (ray.exceptions.RayError, TimeoutError, LeaseLost) as error:
        logger.warning("fleet %s: lease %d not given back, it will expire: %s", lease.fleet, lease.epoch, error)


async def confirm(lease: FleetLease) -> None:
    """Raises LeaseLost if the lease is no longer the one that holds the fleet: what was measured since may be mixed."""
    await call(existing_warden(lease.fleet).renew.remote(lease.epoch), CALL_TIMEOUT_S)


async def revive(lease: FleetLease, engine: EngineRef, snapshot: SnapshotRef) -> EngineRef:
    """Another process in the place of an engine that is lost; it has to be pinned before it is asked anything.

    Raises LeaseLost, or FleetUnhealthy or NoCapacity if none comes up.
    """
    await asyncio.to_thread(connect)
    reference = existing_warden(lease.fleet).revive.remote(lease.epoch, engine, snapshot)
    revived: EngineRef = await call(reference, REVIVE_TIMEOUT_S)
    return revived


async def reproduce_on_node(lease: FleetLease, engine: EngineRef, held: Mapping[str, str], manifest: Manifest) -> Coverage:
    """`infra.reproduction.reproduce`, where the engine's copy of the snapshot is. Raises LeaseLost."""
    await asyncio.to_thread(connect)
    timeout_s = CALL_TIMEOUT_S + manifest.n_bytes / READ_BYTES_PER_S
    coverage: Coverage = await call(
        existing_warden(lease.fleet).reproduce.remote(lease.epoch, engine, held, manifest), timeout_s
    )
    return coverage


async def _keep(lease: FleetLease, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await confirm(lease)


def existing_warden(fleet: str) -> Any:
    """Raises LeaseLost if there is none: whoever had a lease of it has none any more."""
    import ray

    try:
        return ray.get_actor(f"{PREFIX}{fleet}", namespace=NAMESPACE)
    except ValueError:
        raise LeaseLost(f"the warden of fleet {fleet} is gone: it was stopped, or died") from None


def warden(fleet: str) -> Any:
    """The handle of the fleet's warden, which is started if it is not there, here if there is room."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from infra.fleet.warden import FleetWarden

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)

    options = {"name": f"{PREFIX}{fleet}", "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return ray.remote(FleetWarden).options(num_cpus=0, scheduling_strategy=here, **options).remote(fleet)


async def call(ref: Any, timeout_s: float) -> Any:
    """The answer of a warden; its exception as it was raised there. Raises LeaseLost for one that is gone, or gives none."""
    import ray

    try:
        return await asyncio.wait_for(_awaited(ref), timeout_s)
    except TimeoutError:
        raise LeaseLost(f"the fleet's warden gave no answer within {timeout_s:g} s") from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise LeaseLost(f"the fleet's warden is gone: {' '.join(str(error).split())[:200]}") from None


async def _awaited(ref: Any) -> Any:
    return await ref

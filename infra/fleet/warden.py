"""The one owner of a fleet: it places engines, lends them to one holder at a time, and ends them when nobody asks.

A Ray actor found by its fleet's name. A lease expires unless it is renewed, so a holder that died blocks nobody; each
lease has a larger epoch than the last, so a holder that comes back from the dead is refused.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from infra.concurrency import gather_all
from infra.engines.options import Options, ask, settle
from infra.errors import LeaseLost, NoCapacity
from infra.fleet.engine_host import EngineHost
from infra.model import EngineRef, FleetLease, FleetSpec, Manifest, SnapshotRef
from infra.reproduction import Coverage

logger = logging.getLogger(__name__)
IDLE_CHECK_S = 2.0


@dataclass(slots=True)
class _Holding:
    """Who has the fleet, and until when on this actor's own monotonic clock."""

    holder: str
    epoch: int
    expires: float
    ttl_s: float


class FleetWarden:
    """Async actor: its state is touched by one coroutine at a time between awaits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.spec: FleetSpec | None = None
        self.hosts: list[Any] = []
        self.group: Any = None
        self.options: Options | None = None
        self.api_key = secrets.token_hex(16)
        self.holding: _Holding | None = None
        self.epoch = 0
        self.last_used = time.monotonic()
        self.forming = asyncio.Lock()
        self.watch = asyncio.get_event_loop().create_task(self._end_when_idle())

    async def lease(self, spec: FleetSpec, snapshot: SnapshotRef, holder: str) -> FleetLease | str:
        """The lease, with every engine up; or the name of the holder that has the fleet now.

        Raises NoCapacity or FleetUnhealthy; the fleet is then free again.
        """
        current = self._current()
        if current is not None and current.holder != holder:
            return current.holder
        self.epoch += 1
        epoch = self.epoch
        self.holding = _Holding(holder, epoch, time.monotonic() + spec.boot_timeout_s + spec.lease_ttl_s, spec.lease_ttl_s)
        try:
            engines = await self._engines(spec, snapshot)
        except BaseException:
            self.release(epoch)
            raise
        self.renew(epoch)
        return FleetLease(
            fleet=self.name, epoch=epoch, holder=holder, ttl_s=spec.lease_ttl_s, engines=engines, api_key=self.api_key
        )

    def renew(self, epoch: int) -> None:
        """Raises LeaseLost if `epoch` is not the one that holds the fleet."""
        current = self._current()
        if current is None or current.epoch != epoch:
            now = "nobody" if current is None else f"{current.holder} (epoch {current.epoch})"
            raise LeaseLost(f"lease {epoch} of fleet {self.name} has expired; held by {now}")
        current.expires = time.monotonic() + current.ttl_s
        self.last_used = time.monotonic()

    async def reproduce(self, epoch: int, engine: EngineRef, held: Mapping[str, str], manifest: Manifest) -> Coverage:
        """What of an engine's checksums the snapshot makes, read on the engine's node. Raises LeaseLost."""
        self.renew(epoch)
        index = int(engine.name.rpartition("-")[2])
        try:
            found: Coverage = await self.hosts[index].reproduce.remote(engine.checkpoint_path, held, manifest)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return found

    async def give_back(self, epoch: int) -> None:
        """Ends a lease; the engines stay warm. A lease that is over already is left alone."""
        if self.holding is None or self.holding.epoch != epoch:
            return
        self.renew(epoch)  # nobody else fetches into the caches while they are emptied
        await gather_all(_awaited(host.evict.remote()) for host in self.hosts)
        self.release(epoch)

    def release(self, epoch: int) -> bool:
        if self.holding is None or self.holding.epoch != epoch:
            return False
        self.holding = None
        self.last_used = time.monotonic()
        return True

    async def disband(self) -> None:
        """Ends all engines and gives their place back to Ray."""
        hosts, group = self.hosts, self.group
        self.hosts, self.group, self.spec = [], None, None
        for host in hosts:
            try:
                await asyncio.wait_for(_awaited(host.stop.remote()), 15)
                await asyncio.wait_for(_awaited(host.evict.remote()), 15)
            except (TimeoutError, ray.exceptions.RayError) as error:
                logger.warning("fleet %s: engine host did not stop in order: %s", self.name, error)
            ray.kill(host)
        if group is not None:
            remove_placement_group(group)

    def _current(self) -> _Holding | None:
        if self.holding is not None and time.monotonic() >= self.holding.expires:
            logger.warning("fleet %s: lease %d of %s expired", self.name, self.holding.epoch, self.holding.holder)
            self.holding = None
        return self.holding

    async def _engines(self, spec: FleetSpec, snapshot: SnapshotRef) -> tuple[EngineRef, ...]:
        async with self.forming:
            if spec != self.spec:
                self.options = await _checked(spec)
                await self.disband()
                await self._place(spec)
            refs = await gather_all(self._ensure(i, spec, snapshot) for i in range(spec.num_engines))
            return tuple(refs)

    async def _place(self, spec: FleetSpec) -> None:
        numbers = _refused_for_good(spec)
        bundle = {"CPU": spec.cpus_per_engine} | ({"GPU": float(spec.gpus_per_engine)} if spec.gpus_per_engine else {})
        group = placement_group([bundle] * spec.num_engines, strategy="PACK")
        try:
            await asyncio.wait_for(_awaited(group.ready()), spec.boot_timeout_s)
        except TimeoutError:
            remove_placement_group(group)
            raise NoCapacity(f"fleet {spec.name}: not placed within {spec.boot_timeout_s:g} s: {numbers}") from None
        self.group, self.spec = group, spec
        self.hosts = [self._host(index, spec) for index in range(spec.num_engines)]

    def _host(self, index: int, spec: FleetSpec) -> Any:
        strategy = PlacementGroupSchedulingStrategy(placement_group=self.group, placement_group_bundle_index=index)
        actor = ray.remote(EngineHost).options(
            num_cpus=spec.cpus_per_engine, num_gpus=spec.gpus_per_engine, scheduling_strategy=strategy
        )
        return actor.remote(name=f"{self.name}-{index}", spec=spec, api_key=self.api_key, options=self.options)

    async def _ensure(self, index: int, spec: FleetSpec, snapshot: SnapshotRef) -> EngineRef:
        """One engine ready; a host whose process has died is replaced once."""
        try:
            return await self._ready(index, spec, snapshot)
        except ray.exceptions.RayActorError:
            logger.warning("fleet %s: host %d is dead; starting another", self.name, index)
            self.hosts[index] = self._host(index, spec)
            return await self._ready(index, spec, snapshot)

    async def _ready(self, index: int, spec: FleetSpec, snapshot: SnapshotRef) -> EngineRef:
        try:
            ref: EngineRef = await self.hosts[index].ensure.remote(snapshot, spec.boot_timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return ref

    async def _end_when_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            idle = time.monotonic() - self.last_used
            if self.spec and self._current() is None and not self.forming.locked() and idle > self.spec.idle_timeout_s:
                logger.info("fleet %s: idle for %.0f s, engines and warden end", self.name, idle)
                async with self.forming:
                    await self.disband()
                ray.kill(ray.get_runtime_context().current_actor)


async def _checked(spec: FleetSpec) -> Options | None:
    """The options of the fleet's SGLang; raises ConfigError for an engine argument that it does not have."""
    options = await asyncio.to_thread(ask, spec) if spec.engine == "sglang" else None
    settle(spec, options)
    return options


def _refused_for_good(spec: FleetSpec) -> str:
    """What the fleet needs and the cluster has, in numbers; raises NoCapacity if that can't ever be enough."""
    total, free = ray.cluster_resources(), ray.available_resources()
    said = []
    for kind, each in (("CPU", spec.cpus_per_engine), ("GPU", float(spec.gpus_per_engine))):
        if each:
            has = f"the Ray cluster has {total.get(kind, 0.0):g}, {free.get(kind, 0.0):g} of them free"
            said.append(f"{spec.num_engines} engines need {spec.num_engines * each:g} {kind}s; {has}")
    numbers = "; ".join(said)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    largest = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    if spec.num_engines * spec.cpus_per_engine > total.get("CPU", 0.0) or spec.num_gpus > total.get("GPU", 0.0):
        raise NoCapacity(f"fleet {spec.name}: {numbers}")
    if spec.gpus_per_engine > largest:
        wanted = f"an engine needs {spec.gpus_per_engine} GPUs of one node"
        raise NoCapacity(f"fleet {spec.name}: {wanted}, and no node has more than {largest:g}")
    return numbers


async def _awaited(ref: Any) -> Any:
    """A Ray reference as a coroutine, which is what asyncio's own functions take."""
    return await ref

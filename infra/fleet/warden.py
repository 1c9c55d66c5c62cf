"""The one owner of a fleet: it places engines, lends them to one holder at a time, and ends them when nobody asks.

A Ray actor found by its fleet's name. A lease expires unless it is renewed, so a holder that died blocks nobody; each
lease has a larger epoch than the last, so a holder that comes back from the dead is refused.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from infra.concurrency import gather_all
from infra.errors import LeaseLost, NoCapacity
from infra.fleet.engine_host import EngineHost
from infra.model import EngineRef, FleetLease, FleetSpec, SnapshotRef

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
                await self.disband()
                await self._place(spec)
            refs = await gather_all(self._ensure(i, spec, snapshot) for i in range(spec.num_engines))
            return tuple(refs)

    async def _place(self, spec: FleetSpec) -> None:
        needed = spec.num_engines * spec.cpus_per_engine
        total, free = ray.cluster_resources().get("CPU", 0.0), ray.available_resources().get("CPU", 0.0)
        numbers = f"{spec.num_engines} engines need {needed:g} CPUs; the Ray cluster has {total:g}, {free:g} of them free"
        if needed > total:
            raise NoCapacity(f"fleet {spec.name}: {numbers}")
        group = placement_group([{"CPU": spec.cpus_per_engine}] * spec.num_engines, strategy="PACK")
        try:
            await asyncio.wait_for(_awaited(group.ready()), spec.boot_timeout_s)
        except TimeoutError:
            remove_placement_group(group)
            raise NoCapacity(f"fleet {spec.name}: not placed within {spec.boot_timeout_s:g} s: {numbers}") from None
        self.group, self.spec = group, spec
        self.hosts = [self._host(index, spec) for index in range(spec.num_engines)]

    def _host(self, index: int, spec: FleetSpec) -> Any:
        strategy = PlacementGroupSchedulingStrategy(placement_group=self.group, placement_group_bundle_index=index)
        actor = ray.remote(EngineHost).options(num_cpus=spec.cpus_per_engine, scheduling_strategy=strategy)
        return actor.remote(
            fleet=self.name,
            name=f"{self.name}-{index}",
            bind=spec.bind,
            api_key=self.api_key,
            max_running_requests=spec.max_running_requests,
            cpus=spec.cpus_per_engine,
        )

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


async def _awaited(ref: Any) -> Any:
    """A Ray reference as a coroutine, which is what asyncio's own functions take."""
    return await ref

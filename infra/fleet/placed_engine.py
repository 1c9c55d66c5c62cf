"""One engine of a fleet, where Ray has put it: a host on each of its nodes, the first of which listens.

A host or a node that has died is replaced, wherever there is room now. What runs on one node of several can't go on without
the others, so all parts of an engine start and end together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from infra.concurrency import gather_all
from infra.engines.options import Options
from infra.errors import FleetUnhealthy
from infra.fleet.deadlines import fetch_s
from infra.fleet.engine_host import EngineHost
from infra.fleet.placement import Shape, place
from infra.model import EngineRef, EngineStatus, FleetSpec, Manifest, Part, SnapshotRef
from infra.reproduction import Coverage

logger = logging.getLogger(__name__)
STOP_TIMEOUT_S = 20.0
STATUS_TIMEOUT_S = 5.0


class PlacedEngine:
    """All methods are coroutines of the fleet's warden; an error of a host is raised as it was there."""

    def __init__(self, name: str, spec: FleetSpec, shape: Shape, options: Options | None, api_key: str, group: Any) -> None:
        """`group` is the place that it gets at first, with a bundle for each of its nodes."""
        self.name, self.spec, self.shape = name, spec, shape
        self._options, self._api_key, self._group = options, api_key, group
        self._hosts = self._hosted()
        self._turn = asyncio.Lock()
        self._gone = False

    async def ensure(self, snapshot: SnapshotRef) -> EngineRef:
        """The engine, ready for the snapshot; it is started if it is not there, does not answer or is of another architecture.

        Raises FleetUnhealthy if it does not come up, NoCapacity if there is no other place for one whose node is gone.
        """
        async with self._turn:
            return await self._ensured(snapshot)

    async def revive(self, snapshot: SnapshotRef) -> EngineRef:
        """Another process in its place, whatever state it is in; raises as `ensure`."""
        async with self._turn:
            with suppress(ray.exceptions.RayError, TimeoutError):
                await self.stop()
            return await self._ensured(snapshot)

    async def reproduce(self, checkpoint_path: str, held: Mapping[str, str], manifest: Manifest) -> Coverage:
        """What of the engine's checksums the snapshot makes, read on the node that listens."""
        found: Coverage = await _raised_here(self._hosts[0].reproduce.remote(checkpoint_path, held, manifest))
        return found

    async def status(self) -> EngineStatus:
        """What can be said of it within seconds; one that is starting, or whose host is gone, is said to be."""
        try:
            return await asyncio.wait_for(_raised_here(self._hosts[0].status.remote()), STATUS_TIMEOUT_S)
        except TimeoutError:
            return EngineStatus(name=self.name, state="starting, or its node does not answer")
        except ray.exceptions.RayError as error:
            return EngineStatus(name=self.name, state=f"its host is gone ({type(error).__name__})")

    async def stop(self) -> None:
        await gather_all(asyncio.wait_for(_raised_here(host.stop.remote()), STOP_TIMEOUT_S) for host in self._hosts)

    async def evict(self) -> None:
        """Its nodes forget fetched snapshots. A host that is gone has none: they ended with it, or a sweep frees them."""
        for host in self._hosts:
            try:
                await asyncio.wait_for(_raised_here(host.evict.remote()), STOP_TIMEOUT_S)
            except (TimeoutError, ray.exceptions.RayError) as error:
                logger.warning("engine %s: what it fetched was not freed: %s", self.name, type(error).__name__)

    async def remove(self) -> None:
        """Ends its processes, by force if they do not end in order, and gives its place back to Ray, for good."""
        self._gone = True
        await self._let_go(evict=True)

    def _check_wanted(self) -> None:
        """Raises FleetUnhealthy if the fleet has ended meanwhile: nobody would ever give a new place back."""
        if self._gone:
            raise FleetUnhealthy(f"engine {self.name} is of a fleet that has ended")

    async def _let_go(self, *, evict: bool = False) -> None:
        """`evict` only if nobody else of the fleet reads on these nodes."""
        try:
            await self.stop()
        except (TimeoutError, ray.exceptions.RayError) as error:
            logger.warning("engine %s did not stop in order: %s", self.name, type(error).__name__)
        if evict:
            await self.evict()
        for host in self._hosts:
            ray.kill(host)
        remove_placement_group(self._group)

    async def _ensured(self, snapshot: SnapshotRef) -> EngineRef:
        try:
            return await self._ready(snapshot)
        except ray.exceptions.RayError as error:
            logger.warning("engine %s: its host is gone (%s); another is placed", self.name, type(error).__name__)
        await self._let_go()
        self._check_wanted()
        [self._group] = await place(self.spec, self.shape, 1)
        self._hosts = self._hosted()
        if self._gone:
            await self._let_go()
        self._check_wanted()
        try:
            return await self._ready(snapshot)
        except ray.exceptions.RayError as error:
            raise FleetUnhealthy(f"engine {self.name}: its host died again: {' '.join(str(error).split())[:200]}") from None

    async def _ready(self, snapshot: SnapshotRef) -> EngineRef:
        """Bounded by the time that parts may take to come up, so that a host that is never placed can't hold up for ever."""
        deadline_s, fetching_s = 2 * self.spec.boot_timeout_s, fetch_s(snapshot)
        try:
            async with asyncio.timeout(fetching_s):
                usable = await gather_all(_raised_here(host.usable.remote(snapshot)) for host in self._hosts)
        except TimeoutError:
            raise FleetUnhealthy(f"engine {self.name}: its nodes had no snapshot after {fetching_s:.0f} s") from None
        try:
            async with asyncio.timeout(deadline_s):
                meeting = await self._rendezvous() if len(self._hosts) > 1 and not all(usable) else ""
                starts = [host.ensure.remote(snapshot, self.spec.boot_timeout_s, meeting) for host in self._hosts]
                refs: list[EngineRef] = await gather_all(_raised_here(start) for start in starts)
        except TimeoutError:
            raise FleetUnhealthy(f"engine {self.name} was not ready within {deadline_s:g} s") from None
        return refs[0]

    async def _rendezvous(self) -> str:
        """Where the parts meet, which have to be started: then none of them runs."""
        await self.stop()
        return str(await _raised_here(self._hosts[0].rendezvous.remote()))

    def _hosted(self) -> list[Any]:
        return [self._host(Part(rank=rank, of=self.shape.nodes)) for rank in range(self.shape.nodes)]

    def _host(self, part: Part) -> Any:
        strategy = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=part.rank)
        actor = ray.remote(EngineHost).options(num_cpus=self.shape.cpus, num_gpus=self.shape.gpus, scheduling_strategy=strategy)
        return actor.remote(name=self.name, spec=self.spec, api_key=self._api_key, options=self._options, part=part)


async def _raised_here(ref: Any) -> Any:
    """The answer of a host; its exception as it was raised there."""
    try:
        return await ref
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None

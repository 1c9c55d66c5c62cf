"""The one owner of a fleet: it has engines placed, lends them to one holder at a time, and ends them when nobody asks.

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

import ray

from infra.concurrency import gather_all, settle_all
from infra.engines.options import Options, ask, settle
from infra.errors import FleetHeld, FleetUnhealthy, LeaseLost
from infra.fleet.deadlines import forming_s
from infra.fleet.placed_engine import PlacedEngine
from infra.fleet.placement import place, shape_of
from infra.fleet.turns import Turns
from infra.model import EngineRef, FleetLease, FleetSpec, FleetStatus, Manifest, SnapshotRef
from infra.reproduction import Coverage

logger = logging.getLogger(__name__)
IDLE_CHECK_S = 2.0
UNUSED_S = 600.0  # of a warden that has never had engines, or has none any more


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
        self.engines: list[PlacedEngine] = []
        self.api_key = secrets.token_hex(16)
        self.holding: _Holding | None = None
        self.epoch = 0
        self.last_used = time.monotonic()
        self.forming = asyncio.Lock()
        self.turns = Turns()
        self.watch = asyncio.get_event_loop().create_task(self._end_when_idle())

    async def lease(self, spec: FleetSpec, snapshot: SnapshotRef, holder: str, priority: int = 0) -> FleetLease | str:
        """The lease, with every engine up; or the name of who has the fleet now, or has it next.

        Raises NoCapacity or FleetUnhealthy; the fleet is then free again.
        """
        current, first = self._current(), self.turns.ask(holder, priority)
        if current is not None and current.holder != holder:
            return current.holder
        if current is None and first != holder:
            return first
        self.turns.went(holder)
        self.epoch += 1
        epoch = self.epoch
        patience_s = forming_s(spec, snapshot) + spec.lease_ttl_s
        self.holding = _Holding(holder, epoch, time.monotonic() + patience_s, spec.lease_ttl_s)
        try:
            engines = await self._engines(spec, snapshot)
        except BaseException:
            self.release(epoch)
            raise
        self.renew(epoch)
        return FleetLease(
            fleet=self.name,
            epoch=epoch,
            holder=holder,
            ttl_s=spec.lease_ttl_s,
            engines=engines,
            api_key=self.api_key,
            hang_timeout_s=spec.hang_timeout_s,
        )

    def renew(self, epoch: int) -> None:
        """Raises LeaseLost if `epoch` is not the one that holds the fleet."""
        current = self._current()
        if current is None or current.epoch != epoch:
            now = "nobody" if current is None else f"{current.holder} (epoch {current.epoch})"
            raise LeaseLost(f"lease {epoch} of fleet {self.name} has expired; held by {now}")
        current.expires = time.monotonic() + current.ttl_s
        self.last_used = time.monotonic()

    async def revive(self, epoch: int, engine: EngineRef, snapshot: SnapshotRef) -> EngineRef:
        """Another process in the place of an engine that is lost to the lease's holder; it serves nothing that was pinned.

        Raises LeaseLost; FleetUnhealthy or NoCapacity if none comes up.
        """
        self.renew(epoch)
        ref = await self._placed(engine).revive(snapshot)
        self.renew(epoch)
        return ref

    async def reproduce(self, epoch: int, engine: EngineRef, held: Mapping[str, str], manifest: Manifest) -> Coverage:
        """What of an engine's checksums the snapshot makes, read on the engine's node. Raises LeaseLost."""
        self.renew(epoch)
        return await self._placed(engine).reproduce(engine.checkpoint_path, held, manifest)

    async def give_back(self, epoch: int) -> None:
        """Ends a lease; the engines stay warm. A lease that is over already is left alone."""
        if self.holding is None or self.holding.epoch != epoch:
            return
        self.renew(epoch)  # nobody else fetches into the caches while they are emptied
        await settle_all(engine.evict() for engine in self.engines)
        self.release(epoch)

    def release(self, epoch: int) -> bool:
        if self.holding is None or self.holding.epoch != epoch:
            return False
        self.holding = None
        self.last_used = time.monotonic()
        return True

    async def status(self) -> FleetStatus:
        """What the fleet is and does now, within seconds."""
        current, spec, now = self._current(), self.spec, time.monotonic()
        found = await gather_all(engine.status() for engine in self.engines)
        return FleetStatus(
            name=self.name,
            engine=spec.engine if spec else "",
            num_gpus=spec.num_gpus if spec else 0,
            holder=current.holder if current else "",
            epoch=self.epoch,
            lease_left_s=current.expires - now if current else 0.0,
            ends_in_s=self.last_used + spec.idle_timeout_s - now if spec and not current else None,
            engines=tuple(found),
        )

    async def end(self, *, force: bool) -> None:
        """Ends the engines; who calls it ends the warden. Raises FleetHeld if somebody has the fleet, unless by force."""
        current = self._current()
        if current is not None and not force:
            raise FleetHeld(f"fleet {self.name} is held by {current.holder}; --force ends it all the same")
        self.holding = None
        await self.disband()

    async def disband(self) -> None:
        """Ends all engines and gives their places back to Ray."""
        engines, self.engines, self.spec = self.engines, [], None
        await settle_all(engine.remove() for engine in engines)

    def _current(self) -> _Holding | None:
        if self.holding is not None and time.monotonic() >= self.holding.expires:
            logger.warning("fleet %s: lease %d of %s expired", self.name, self.holding.epoch, self.holding.holder)
            self.holding = None
        return self.holding

    def _placed(self, engine: EngineRef) -> PlacedEngine:
        """Raises FleetUnhealthy for one that is not of the fleet as it is now."""
        found = next((placed for placed in self.engines if placed.name == engine.name), None)
        if found is None:
            raise FleetUnhealthy(f"fleet {self.name} has no engine {engine.name} any more")
        return found

    async def _engines(self, spec: FleetSpec, snapshot: SnapshotRef) -> tuple[EngineRef, ...]:
        async with self.forming:
            if spec != self.spec:
                options = await _checked(spec)
                await self.disband()
                await self._place(spec, options)
            return tuple(await gather_all(engine.ensure(snapshot) for engine in self.engines))

    async def _place(self, spec: FleetSpec, options: Options | None) -> None:
        shape = shape_of(spec)
        groups = await place(spec, shape, spec.num_engines)
        self.spec = spec
        self.engines = [
            PlacedEngine(f"{self.name}-{index}", spec, shape, options, self.api_key, group)
            for index, group in enumerate(groups)
        ]

    async def _end_when_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            idle = time.monotonic() - self.last_used
            patience = self.spec.idle_timeout_s if self.spec else UNUSED_S
            if self._current() is None and not self.forming.locked() and idle > patience:
                logger.info("fleet %s: idle for %.0f s, engines and warden end", self.name, idle)
                async with self.forming:
                    await self.disband()
                ray.kill(ray.get_runtime_context().current_actor)


async def _checked(spec: FleetSpec) -> Options | None:
    """The options of the fleet's SGLang; raises ConfigError for an engine argument that it does not have."""
    options = await asyncio.to_thread(ask, spec) if spec.engine == "sglang" else None
    settle(spec, options)
    return options

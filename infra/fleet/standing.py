"""Fleets that run are found, looked at and ended, by people; none is started by looking."""

from __future__ import annotations

import asyncio
import logging

from infra.concurrency import gather_all
from infra.errors import ConfigError, LeaseLost
from infra.fleet.lease import CALL_TIMEOUT_S, NAMESPACE, PREFIX, call, connect, existing_warden
from infra.model import FleetStatus

logger = logging.getLogger(__name__)
END_TIMEOUT_S = 120.0


async def fleets() -> list[FleetStatus]:
    """All fleets of the cluster, by name. Raises ServiceUnreachable if Ray does not answer."""
    await asyncio.to_thread(connect)
    found = await gather_all(_status(name) for name in _names())
    there = set(_names())  # one that is not there any more has just ended
    return [status for status in found if status.answers or status.name in there]


async def end(name: str, *, force: bool = False) -> None:
    """Ends the engines of a fleet and frees what they hold; its next lease starts others.

    Raises FleetHeld if somebody has it, unless by force; ConfigError if there is no such fleet.
    """
    import ray

    await asyncio.to_thread(connect)
    if name not in _names():
        known = ", ".join(_names()) or "none"
        raise ConfigError(f"no fleet {name!r} runs in this Ray cluster; fleets there: {known}")
    warden = existing_warden(name)
    try:
        await call(warden.end.remote(force=force), END_TIMEOUT_S)
    except LeaseLost:
        if not force:
            raise
        logger.warning("the warden of fleet %s gave no answer and is killed; its engines end with it", name)
    ray.kill(warden)


def _names() -> list[str]:
    import ray

    actors = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]
    return sorted(actor["name"].removeprefix(PREFIX) for actor in actors if actor["name"].startswith(PREFIX))


async def _status(name: str) -> FleetStatus:
    try:
        status: FleetStatus = await call(existing_warden(name).status.remote(), CALL_TIMEOUT_S)
    except LeaseLost:
        return FleetStatus.silent(name)
    return status

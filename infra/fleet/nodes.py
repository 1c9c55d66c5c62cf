"""What only one node can do is done on that node, through Ray; what this machine can do is done here, without it.

A node goes by its host name, its address, or the name that `ray start --node-name` gave it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio

from infra.concurrency import gather_all
from infra.errors import PinpointError, ServiceUnreachable
from infra.fleet.lease import connect
from infra.model import SnapshotSource, StagedPart

T = TypeVar("T")
END_S = 30.0
KEYS = ("NodeName", "NodeManagerHostname", "NodeManagerAddress")


def is_here(host: str) -> bool:
    return host in ("", socket.gethostname(), socket.getfqdn())


def places(source: SnapshotSource) -> tuple[StagedPart, ...]:
    """Where all of a source lies, "" for the host if that is here: a folder of one host that this one sees is here, too."""
    parts = source.parts or (StagedPart(path=source.path),)
    if len(parts) == 1 and Path(parts[0].path).is_dir():
        return (parts[0].model_copy(update={"host": ""}),)
    return tuple(part.model_copy(update={"host": ""}) if is_here(part.host) else part for part in parts)


async def on_host(host: str, call: Callable[..., T], *arguments: Any) -> T:
    """`call(*arguments)` in a thread here, or in a Ray worker on `host`; it and its arguments must be picklable.

    Raises what the call raises; ServiceUnreachable if Ray does not answer, or has no such node.
    """
    if is_here(host):
        return await asyncio.to_thread(call, *arguments)
    node_id = await asyncio.to_thread(_node_of, host)
    return await on_node(node_id, call, *arguments)


async def on_other_hosts(call: Callable[..., T], *arguments: Any) -> dict[str, T | PinpointError]:
    """The same on every node of the cluster but this one, by host name; a node that fails gives its error."""
    import ray

    await asyncio.to_thread(connect)
    own = ray.get_runtime_context().get_node_id()
    nodes = {str(node["NodeManagerHostname"]): str(node["NodeID"]) for node in ray.nodes() if node["Alive"]}
    others = {host: node_id for host, node_id in nodes.items() if node_id != own and not is_here(host)}
    outcomes = await gather_all(_outcome(node_id, call, *arguments) for node_id in others.values())
    return dict(zip(others, outcomes, strict=True))


async def _outcome(node_id: str, call: Callable[..., T], *arguments: Any) -> T | PinpointError:
    try:
        return await on_node(node_id, call, *arguments)
    except PinpointError as error:
        return error


def _node_of(host: str) -> str:
    import ray

    connect()
    alive = [node for node in ray.nodes() if node["Alive"]]
    for node in alive:
        if host in [str(node.get(key)) for key in KEYS]:
            return str(node["NodeID"])
    known = ", ".join(sorted(str(node["NodeManagerHostname"]) for node in alive))
    remedy = f"run `ray start --address=... --node-name={host}` there; its nodes are: {known}"
    raise ServiceUnreachable("Ray", f"node {host}", remedy)


async def on_node(node_id: str, call: Callable[..., T], *arguments: Any) -> T:
    """`call(*arguments)` in a Ray worker on the node with this Ray id; raises as `on_host`."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    remote = ray.remote(num_cpus=0, max_retries=0)(_called).options(scheduling_strategy=strategy)
    reference = remote.remote(call, *arguments)
    try:
        result: T = await reference
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise ServiceUnreachable(
            "Ray", f"node {node_id[:8]}", f"it was lost while it worked: {type(error).__name__}"
        ) from error
    except asyncio.CancelledError:
        ray.cancel(reference, force=True)
        with anyio.move_on_after(END_S, shield=True):  # what it does must have ended when this returns
            await asyncio.wait([asyncio.ensure_future(_ended(reference))])
        raise
    return result


async def _ended(reference: Any) -> None:
    import ray

    with suppress(ray.exceptions.RayError, Exception):
        await reference


def _called(call: Callable[..., T], *arguments: Any) -> T:
    """Ray takes plain functions only."""
    return call(*arguments)

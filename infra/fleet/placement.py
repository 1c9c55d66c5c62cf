"""Each engine gets a place of its own: on one node, or shared out evenly over as few nodes as its GPUs need; or is refused.

A place is a Ray placement group with a bundle for each node of the engine. A refusal says in numbers what was wanted and what
the cluster has.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from infra.errors import NoCapacity
from infra.model import FleetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How one engine lies in the cluster: so many nodes, and what it takes of each."""

    nodes: int
    cpus: float
    gpus: int

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})


def shape_of(spec: FleetSpec) -> Shape:
    """Raises NoCapacity, with numbers, for a fleet that the cluster as it is can't ever hold."""
    return fit(spec, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def fit(spec: FleetSpec, nodes: list[dict[str, float]]) -> Shape:
    """The fewest nodes an engine; `nodes` are the resources that each node of the cluster has in all, in use or not."""
    cpus, gpus = (sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU"))
    if spec.num_engines * spec.cpus_per_engine > cpus or spec.num_gpus > gpus:
        raise NoCapacity(f"fleet {spec.name}: {numbers(spec)}")
    if not spec.gpus_per_engine:
        return Shape(nodes=1, cpus=spec.cpus_per_engine, gpus=0)
    for count in range(1, len(nodes) + 1):
        each, left_over = divmod(spec.gpus_per_engine, count)
        places = [int(node.get("GPU", 0.0) // each) if each else 0 for node in nodes]
        enough = sum(min(spec.num_engines, place) for place in places) >= spec.num_engines * count
        if not left_over and enough:
            return Shape(nodes=count, cpus=spec.cpus_per_engine / count, gpus=each)
    wanted = f"{spec.num_engines} engines of {spec.gpus_per_engine} GPUs each, on one node or in equal parts of several"
    have = ", ".join(f"{node.get('GPU', 0.0):g}" for node in nodes)
    raise NoCapacity(f"fleet {spec.name}: {wanted}, don't fit on nodes that have {have}")


def numbers(spec: FleetSpec) -> str:
    """What the fleet needs and what the cluster has now."""
    total, free = ray.cluster_resources(), ray.available_resources()
    said = []
    for kind, each in (("CPU", spec.cpus_per_engine), ("GPU", float(spec.gpus_per_engine))):
        if each:
            has = f"the Ray cluster has {total.get(kind, 0.0):g}, {free.get(kind, 0.0):g} of them free"
            said.append(f"{spec.num_engines} engines need {spec.num_engines * each:g} {kind}s; {has}")
    return "; ".join(said)


async def place(spec: FleetSpec, shape: Shape, count: int) -> list[Any]:
    """So many places, once Ray has reserved them all. Raises NoCapacity if it has not within the fleet's `boot_timeout_s`."""
    strategy = "STRICT_PACK" if shape.nodes == 1 else "STRICT_SPREAD"
    groups = [placement_group([shape.bundle] * shape.nodes, strategy=strategy) for _ in range(count)]
    try:
        async with asyncio.timeout(spec.boot_timeout_s):
            for group in groups:
                await group.ready()
    except BaseException as error:
        said = numbers(spec) if isinstance(error, TimeoutError) else ""
        for group in groups:
            remove_placement_group(group)
        if said:
            raise NoCapacity(f"fleet {spec.name}: not placed within {spec.boot_timeout_s:g} s: {said}") from None
        raise
    return groups

"""Ray lets us in, and has what the fleet of the settings needs; its engine can be run on every node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flows.diagnosis.finding import Finding
from infra.engines.options import interpreter
from infra.errors import PinpointError
from infra.fleet.lease import connect
from infra.fleet.nodes import on_node
from infra.model import FleetSpec

ENGINE_TIMEOUT_S = 120.0
NODES = 32  # that are looked at; more would be started at once
EMBEDDED = """
import infra.engines.embedded.__main__, torch, transformers
print(f"embedded, torch {torch.__version__}, transformers {transformers.__version__}")
"""
SGLANG = """
import sglang, sglang.srt.server_args
print(f"SGLang {sglang.__version__}")
"""


def check_ray_cluster(address: str | None, fleet: FleetSpec) -> Sequence[Finding]:
    """Raises ServiceUnreachable for one that does not answer, or refuses our token."""
    if address is None:
        remedy = "`pinpoint up` starts one; for one elsewhere set PINPOINT_RAY_ADDRESS"
        found = Finding(piece="Ray", verdict="note", found="no cluster is named, and none runs here", remedy=remedy)
        return [found, _engine_here(fleet)]
    import ray

    connect(address)
    nodes = {str(node["NodeID"]): node for node in ray.nodes() if node["Alive"]}
    total, free = ray.cluster_resources(), ray.available_resources()
    said = f"{address}, {len(nodes)} nodes, {total.get('CPU', 0):g} CPUs, {free.get('CPU', 0):g} of them free"
    return [
        Finding(piece="Ray", verdict="ok", found=said),
        _capacity(fleet, total, free),
        *asyncio.run(_engines(fleet, nodes)),
    ]


def _capacity(fleet: FleetSpec, total: Mapping[str, float], free: Mapping[str, float]) -> Finding:
    """GPUs that a trainer holds for good are not free for a fleet either, so what is free counts too."""
    needed = {"CPU": fleet.num_engines * fleet.cpus_per_engine, "GPU": float(fleet.num_gpus)}
    said = f"fleet {fleet.name}: {fleet.num_engines} engines need {needed['CPU']:g} CPUs and {needed['GPU']:g} GPUs"
    short = [f"{total.get(kind, 0):g} {kind}s" for kind in needed if total.get(kind, 0) < needed[kind]]
    if short:
        remedy = "its points are skipped as no_capacity: add nodes, or make the fleet smaller (PINPOINT_FLEET)"
        return Finding(piece="capacity", verdict="fault", found=f"{said}; the cluster has {' and '.join(short)}", remedy=remedy)
    taken = [f"{free.get(kind, 0):g} {kind}s" for kind in needed if free.get(kind, 0) < needed[kind]]
    if taken:
        remedy = "a fleet that runs already may hold them: `pinpoint fleet status`"
        return Finding(piece="capacity", verdict="note", found=f"{said}; {' and '.join(taken)} are free", remedy=remedy)
    return Finding(piece="capacity", verdict="ok", found=f"{said}; they are free")


async def _engines(fleet: FleetSpec, nodes: Mapping[str, Mapping[str, Any]]) -> Sequence[Finding]:
    findings = []
    for node_id, node in list(nodes.items())[:NODES]:
        where = f"engine on {node['NodeManagerHostname']}"
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                said = await on_node(node_id, engine_version, fleet)
            findings.append(Finding(piece=where, verdict="ok", found=said))
        except TimeoutError:
            findings.append(Finding(piece=where, verdict="fault", found=f"no answer within {ENGINE_TIMEOUT_S:g} s"))
        except (PinpointError, RuntimeError) as error:
            findings.append(Finding(piece=where, verdict="fault", found=str(error), remedy=_remedy(fleet)))
    if len(nodes) > NODES:
        findings.append(Finding(piece="engine", verdict="note", found=f"{len(nodes) - NODES} further nodes were not looked at"))
    return findings


def _engine_here(fleet: FleetSpec) -> Finding:
    try:
        return Finding(piece="engine here", verdict="ok", found=engine_version(fleet))
    except RuntimeError as error:
        return Finding(piece="engine here", verdict="fault", found=str(error), remedy=_remedy(fleet))


def engine_version(fleet: FleetSpec) -> str:
    """What serves the fleet's engines on this machine, imported by its own interpreter. Raises RuntimeError if that fails."""
    python, code = ([sys.executable], EMBEDDED) if fleet.engine == "embedded" else (interpreter(fleet), SGLANG)
    try:
        asked = subprocess.run([*python, "-c", code], capture_output=True, text=True, timeout=ENGINE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{python[-1]}: {error}") from None
    if asked.returncode:
        raise RuntimeError(f"{python[-1]} can't import the {fleet.engine} engine: {' '.join(asked.stderr.split())[-200:]}")
    return asked.stdout.splitlines()[-1]


def _remedy(fleet: FleetSpec) -> str:
    if fleet.engine == "embedded":
        return "install the same version of this package on every node"
    return "set fleet.engine_python to the interpreter of an environment with SGLang (docs/engines.md)"

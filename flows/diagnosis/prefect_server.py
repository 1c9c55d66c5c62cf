"""Prefect answers and lets us in, has this project's deployments, and somebody runs them."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from typing import Any

import httpx

from flows.diagnosis.finding import Finding
from flows.stack import check_prefect
from trainer_integration.prefect_api import authorization

TIMEOUT = httpx.Timeout(5.0, connect=2.0)
START_S = 5.0
DEPLOYMENTS = tuple(
    f"{flow}/pinpoint" for flow in ("evaluate_snapshot", "evaluate_live", "reclaim_orphans", "reevaluate_saved")
)
SERVE = "start `pinpoint up`, or `python -m flows.serve` where PREFECT_API_URL names this server"


def check_prefect_server(api_url: str | None) -> Sequence[Finding]:
    """Raises ServiceUnreachable for one that does not answer, or refuses our credentials."""
    if api_url is None:
        remedy = "`pinpoint up` starts one; for one elsewhere set PINPOINT_PREFECT_API_URL"
        return [Finding(piece="Prefect", verdict="note", found="no server is named, and none runs here", remedy=remedy)]
    check_prefect(api_url)
    with httpx.Client(base_url=api_url, timeout=TIMEOUT, headers=authorization()) as api:
        return [_version(api, api_url), *_settled(api)]


def _version(api: httpx.Client, api_url: str) -> Finding:
    server, own = str(api.get("/admin/version").json()), importlib.metadata.version("prefect")
    said = f"{api_url}, version {server}"
    if server.split(".")[:2] != own.split(".")[:2]:
        remedy = f"this environment has {own}: give both the same minor version"
        return Finding(piece="Prefect", verdict="note", found=said, remedy=remedy)
    return Finding(piece="Prefect", verdict="ok", found=said)


def _settled(api: httpx.Client) -> Sequence[Finding]:
    """A runner that has just been started registers its deployments one after the other, and then asks for work."""
    deadline = time.monotonic() + START_S
    while True:
        findings = _runner(api)
        if time.monotonic() >= deadline or all(one.verdict != "fault" for one in findings):
            return findings
        time.sleep(1.0)


def _runner(api: httpx.Client) -> Sequence[Finding]:
    answers = {name: api.get(f"/deployments/name/{name}") for name in DEPLOYMENTS}
    missing = [name for name, answer in answers.items() if answer.status_code == httpx.codes.NOT_FOUND]
    if missing:
        return [Finding(piece="deployments", verdict="fault", found=f"not registered: {', '.join(missing)}", remedy=SERVE)]
    deployments = {name: answer.raise_for_status().json() for name, answer in answers.items()}
    paused = [name for name, known in deployments.items() if known["paused"]]
    registered = Finding(piece="deployments", verdict="ok", found=f"{len(deployments)} registered")
    if paused:
        remedy = "resume them in the UI, or nothing that is due there starts"
        registered = Finding(piece="deployments", verdict="note", found=f"paused: {', '.join(paused)}", remedy=remedy)
    return [registered, _serving(api, deployments), *_workers(api, deployments)]


def _serving(api: httpx.Client, deployments: dict[str, Any]) -> Finding:
    """Prefect knows when a runner last asked for work; what waits although it is due says more."""
    late = int(api.post("/flow_runs/count", json={"flow_runs": {"state": {"name": {"any_": ["Late"]}}}}).json())
    idle = [name for name, known in deployments.items() if known["status"] != "READY"]
    if idle:
        waiting = f"; {late} flow runs are late" if late else ""
        return Finding(
            piece="runner", verdict="fault", found=f"nobody asks for work of {', '.join(idle)}{waiting}", remedy=SERVE
        )
    if late:
        remedy = "a runner takes 4 at once; if it stays so, start another `python -m flows.serve`"
        return Finding(piece="runner", verdict="note", found=f"serving; {late} flow runs are late", remedy=remedy)
    return Finding(piece="runner", verdict="ok", found="asks for work")


def _workers(api: httpx.Client, deployments: dict[str, Any]) -> Sequence[Finding]:
    pools = {known["work_pool_name"] for known in deployments.values() if known["work_pool_name"]}
    findings = []
    for pool in sorted(pools):
        if api.get(f"/work_pools/{pool}").raise_for_status().json()["is_paused"]:
            remedy = f"resume it in the UI, or by `prefect work-pool resume {pool}`"
            findings.append(Finding(piece="work pool", verdict="fault", found=f"work pool {pool} is paused", remedy=remedy))
        workers = api.post(f"/work_pools/{pool}/workers/filter", json={}).raise_for_status().json()
        online = [worker["name"] for worker in workers if worker["status"] == "ONLINE"]
        if online:
            found = f"work pool {pool} has a worker: {', '.join(online)}"
            remedy = "end it and serve instead: its flows do not clean up at SIGTERM (docs/decisions/0001-serve-not-worker.md)"
            findings.append(Finding(piece="work pool", verdict="note", found=found, remedy=remedy))
    return findings

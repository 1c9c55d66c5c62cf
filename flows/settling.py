"""When a command ends, so has what its flows do once a point has its record: show it, and delete its snapshot."""

from __future__ import annotations

import time

import httpx

from trainer_integration.prefect_api import authorization

WITHIN_S = 90.0  # showing has 45 s of its own
EVERY_S = 0.2
UNFINISHED = ("PENDING", "RUNNING", "CANCELLING")  # what is only scheduled has no record, and waits for a runner


def wait_for_flows(api_url: str, *tags: str, within_s: float = WITHIN_S) -> bool:
    """Whether all flow runs that have these tags ended in time. A Prefect that is away is not waited for; a slow one is."""
    asked = {"flow_runs": {"tags": {"all_": list(tags)}, "state": {"type": {"any_": list(UNFINISHED)}}}}
    deadline = time.monotonic() + within_s
    with httpx.Client(base_url=api_url.rstrip("/"), timeout=10.0, headers=authorization()) as api:
        while time.monotonic() < deadline:
            answer: httpx.Response | None
            try:
                answer = api.post("/flow_runs/count", json=asked)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol):
                return False
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.is_success and answer.json() == 0:
                return True
            time.sleep(EVERY_S)
    return False

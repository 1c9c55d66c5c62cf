"""What a trainer asks of Prefect, a real server does: the fake at the wire is like it where a point was given up."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.processes import start, stop
from tests.infra.examples import SKIPPED, request
from tests.services.ports import free_port
from tests.services.waiting import patiently
from trainer_integration import prefect_api
from trainer_integration.outbox import DEPLOYMENT, Delivery
from trainer_integration.prefect_api import PrefectApi

pytestmark = pytest.mark.slow
START_S = 90.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[httpx.Client]:
    """A Prefect with one deployment, and nobody who runs it."""
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    process = start(command, tmp_path / "log", {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": api})
    try:
        with httpx.Client(base_url=api, timeout=20) as client:
            wait_for(client)
            flow, name = DEPLOYMENT.split("/")
            flow_id = made(client, "/flows/", {"name": flow})
            made(client, "/deployments/", {"name": name, "flow_id": flow_id})
            yield client
    finally:
        stop(process)


def wait_for(client: httpx.Client) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if client.get("/health").is_success:
                return
        time.sleep(0.2)
    raise TimeoutError("Prefect did not start")


def made(client: httpx.Client, path: str, body: dict[str, Any]) -> str:
    return str(patiently(lambda: client.post(path, json=body).raise_for_status()).json()["id"])


def state_of(client: httpx.Client, flow_run_id: str) -> tuple[str, str]:
    answer = patiently(lambda: client.get(f"/flow_runs/{flow_run_id}").raise_for_status())
    state: dict[str, Any] = answer.json()["state"]
    return state["name"], state["message"]


def test_a_flow_run_that_has_not_begun_can_be_ended_as_skipped_and_one_that_has_is_left_alone(
    server: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_api, "TIMEOUT", 60.0)
    api = PrefectApi(str(server.base_url))
    plain = Delivery.of(request(), DEPLOYMENT)
    waiting, begun, found = (
        patiently(partial(api.create_flow_run, plain.model_copy(update={"idempotency_key": key})))
        for key in ("waiting", "begun", "found")
    )
    running = {"state": {"type": "RUNNING", "name": "Running", "message": "its own"}, "force": True}
    patiently(lambda: server.post(f"/flow_runs/{begun}/set_state", json=running).raise_for_status())
    for flow_run_id in (waiting, begun):
        patiently(partial(api.show_skip, flow_run_id, SKIPPED))
    skip = Delivery.of(request(), DEPLOYMENT, SKIPPED).model_copy(update={"idempotency_key": "found"})
    assert patiently(partial(api.create_flow_run, skip)) == found
    told = f"{SKIPPED.reason}: {SKIPPED.message}"
    assert [state_of(server, flow_run_id) for flow_run_id in (waiting, begun, found)] == [
        ("Skipped", told),
        ("Running", "its own"),
        ("Skipped", told),
    ]
    api.close()

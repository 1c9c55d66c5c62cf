"""The few calls of Prefect's REST API that a trainer needs, each over in seconds if the server is down, hung or failing.

The limits are httpx's: 1 s to connect, 3 s for each single read or write, none for a call in all. A server that sends a few
bytes every second holds the thread that calls it for as long as it does so, and never training.

Prefect's own client is not used: it waits for up to 422 s on a server that accepts and never answers, and a trainer's
environment need not have it. Source: prefect 3.9 `server/api/deployments.py`, `server/api/flow_runs.py`.
"""

from __future__ import annotations

import base64
import os
from typing import Any

import httpx

from infra.model import SkippedPoint
from trainer_integration.outbox import Delivery

TIMEOUT = httpx.Timeout(3.0, connect=1.0)
TERMINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
NOT_BEGUN = frozenset({"SCHEDULED", "PENDING"})


class PrefectRefused(Exception):
    """Prefect understood and said no: trying the same again can't help. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"Prefect answered {status}: {message[:500]}")


def authorization() -> dict[str, str]:
    """The header by which Prefect knows us, as its own client makes it of the same variables; empty if none is set."""
    if auth := os.environ.get("PREFECT_API_AUTH_STRING"):
        return {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
    if key := os.environ.get("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    return {}


class PrefectApi:
    """One server. Every method raises httpx.HTTPError when it is down, slow or failing, PrefectRefused when it says no."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=TIMEOUT, headers=authorization())
        self._deployments: dict[str, str] = {}

    def create_flow_run(self, delivery: Delivery) -> str:
        """Creates the flow run, or finds the one that has its idempotency key; gives its id.

        One that is found shows the delivery's skip, too, unless it has begun.
        """
        body: dict[str, Any] = {
            "name": delivery.name,
            "parameters": delivery.parameters,
            "tags": list(delivery.tags),
            "idempotency_key": delivery.idempotency_key,
            "enforce_parameter_schema": False,
        }
        if delivery.skip is not None:
            body["state"] = _skipped(delivery.skip)
        answer = self._post(f"/deployments/{self._deployment_id(delivery.deployment)}/create_flow_run", body)
        flow_run_id, state = str(answer["id"]), answer.get("state") or {}
        if delivery.skip is not None and state.get("type") in NOT_BEGUN:
            self._end(flow_run_id, delivery.skip)
        return flow_run_id

    def show_skip(self, flow_run_id: str, skip: SkippedPoint) -> None:
        """Ends a flow run as Skipped, and no process is started for it; one that has begun is left alone."""
        if self.state_of(flow_run_id)[0] in NOT_BEGUN:
            self._end(flow_run_id, skip)

    def state_of(self, flow_run_id: str) -> tuple[str, str]:
        """Type and name of a flow run's state, e.g. ("COMPLETED", "Skipped")."""
        response = self._client.get(f"/flow_runs/{flow_run_id}")
        self._raise(response)
        state = response.json()["state"]
        return str(state["type"]), str(state["name"])

    def close(self) -> None:
        self._client.close()

    def _end(self, flow_run_id: str, skip: SkippedPoint) -> None:
        self._post(f"/flow_runs/{flow_run_id}/set_state", {"state": _skipped(skip), "force": False})

    def _deployment_id(self, name: str) -> str:
        if name not in self._deployments:
            response = self._client.get(f"/deployments/name/{name}")
            self._raise(response)
            self._deployments[name] = str(response.json()["id"])
        return self._deployments[name]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = self._client.post(path, json=body)
        self._raise(response)
        return response.json()

    def _raise(self, response: httpx.Response) -> None:
        """404 is not a refusal: the deployment may be registered a moment later; it is forgotten and asked for again."""
        if response.status_code == 404:
            self._deployments.clear()
        if response.status_code in (400, 409, 422):
            raise PrefectRefused(response.status_code, response.text)
        response.raise_for_status()


def _skipped(skip: SkippedPoint) -> dict[str, str]:
    return {"type": "COMPLETED", "name": "Skipped", "message": f"{skip.reason}: {skip.message}"}

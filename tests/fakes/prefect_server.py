"""Prefect's REST API as far as a trainer and a task's progress speak it, with its faults as fields; it knows what it created.

Source: prefect 3.9 `server/api/deployments.py`, `server/api/flow_runs.py`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.wire import Answer, Hang, WireServer


@dataclass(slots=True)
class FlowRun:
    """A flow run as it was asked for; a test moves it on by setting its state."""

    id: str
    body: dict[str, Any]
    state: dict[str, str] = field(default_factory=lambda: {"type": "SCHEDULED", "name": "Scheduled"})

    def end(self, kind: str) -> None:
        self.state = {"type": kind.upper(), "name": kind}


class FakePrefect(WireServer):
    """`stop()` makes it refuse connections; `start()` brings it back with what it knew."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.hung = False  # accepts and never answers
        self.failing: int | None = None  # every answer has this status
        self.refusing: int | None = None  # create_flow_run answers this, 409 for one
        self.registered = True  # whether the deployments are known
        self.unknown: set[str] = set()  # deployments, FLOW/DEPLOYMENT, that never are
        self.forgets = False  # flow runs were deleted by somebody
        self.runs: list[FlowRun] = []

    @property
    def api_url(self) -> str:
        return f"{self.base_url}/api"

    @property
    def names(self) -> list[str]:
        return [run.body["name"] for run in self.runs]

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if self.hung:
            raise Hang
        if self.failing is not None:
            return Answer("Service Unavailable", self.failing)
        match (method, path.split("/")[2:]):
            case ("GET", ["csrf-token"]):
                return Answer({"detail": "CSRF protection is disabled."}, 422)
            case ("POST", ["artifacts", ""]):
                return Answer({"id": str(uuid.uuid4()), **body}, 201)
            case ("PATCH", ["artifacts", _]):
                return Answer(status=204)
            case ("GET", ["deployments", "name", flow, deployment]):
                if not self.registered or f"{flow}/{deployment}" in self.unknown:
                    return Answer({"detail": "Deployment not found"}, 404)
                return Answer({"id": f"{flow}+{deployment}", "name": deployment})
            case ("POST", ["deployments", _, "create_flow_run"]):
                return self._create(body)
            case ("GET", ["flow_runs", id]):
                return self._read(id)
            case ("POST", ["flow_runs", id, "set_state"]):
                return self._set_state(id, body["state"])
        return Answer({"detail": "Not Found"}, 404)

    def _create(self, body: dict[str, Any]) -> Answer:
        if self.refusing is not None:
            return Answer({"detail": "Error creating flow run"}, self.refusing)
        with self.lock:
            for run in self.runs:
                if run.body["idempotency_key"] == body["idempotency_key"]:
                    return Answer({"id": run.id, "state": run.state}, 200)
            run = FlowRun(str(uuid.uuid4()), body)
            if "state" in body:
                run.state = {"type": body["state"]["type"], "name": body["state"]["name"]}
            self.runs.append(run)
        return Answer({"id": run.id, "state": run.state}, 201)

    def _read(self, id: str) -> Answer:
        found = [run for run in self.runs if run.id == id and not self.forgets]
        if not found:
            return Answer({"detail": "Flow run not found"}, 404)
        return Answer({"id": id, "state": found[0].state})

    def _set_state(self, id: str, state: dict[str, str]) -> Answer:
        with self.lock:
            found = [run for run in self.runs if run.id == id and not self.forgets]
            if not found:
                return Answer({"detail": "Flow run not found"}, 404)
            found[0].state = state
        return Answer({"state": state, "status": "ACCEPT", "details": {}}, 201)

"""Whoever waits for a point sees how far each of its datasets is; what can't be shown is not waited for."""

from __future__ import annotations

import io
import time
from typing import Any

import httpx
import pytest
from rich.console import Console

from flows import progress
from flows.progress import Bar, bars_of, progress_shown
from tests.fakes.wire import Answer, Hang, WireServer
from tests.infra.examples import request
from tests.services.waiting import until
from trainer_integration.outbox import DEPLOYMENT, Delivery

DELIVERY = Delivery.of(request(), DEPLOYMENT)


class Artifacts(WireServer):
    """Prefect as far as it has progress artifacts, newest first."""

    def __init__(self) -> None:
        super().__init__()
        self.hung = False
        self.found: list[dict[str, Any]] = []

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if self.hung:
            raise Hang
        if path == "/api/flow_runs/filter":
            known = body["flow_runs"]["idempotency_key"]["any_"] == [DELIVERY.idempotency_key]
            return Answer([{"id": "r"}] if known else [])
        assert body["artifacts"] == {"flow_run_id": {"any_": ["r"]}, "type": {"any_": ["progress"]}}
        return Answer(self.found)

    @property
    def url(self) -> str:
        return f"{self.base_url}/api"


def artifact(key: str, percent: float, said: str) -> dict[str, Any]:
    return {"key": key, "data": percent, "description": said}


def test_a_bar_a_dataset_and_of_several_tries_the_last() -> None:
    with Artifacts() as server, httpx.Client(base_url=server.url) as api:
        server.found = [artifact("b", 10, "b: \x1b[31m1 of 10"), artifact("a", 50, "second"), artifact("a", 100, "first")]
        assert bars_of(DELIVERY, api) == [Bar("a", 50.0, "second"), Bar("b", 10.0, "b:  [31m1 of 10")]


def test_bars_move_while_the_point_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.05)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Artifacts() as server, progress_shown(DELIVERY, server.url, console):
        server.found = [artifact("progress-sums", 25, "sums: 25 of 100 samples [bold]")]
        until(lambda: "sums: 25 of 100 samples [bold]" in out.getvalue(), 30)
    assert "run · step 000010" in out.getvalue()


@pytest.mark.parametrize("fault", ["hung", "garbled", "down"])
def test_a_prefect_that_does_not_answer_holds_nobody_back(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    monkeypatch.setattr(progress, "TIMEOUT_S", 0.5)
    with Artifacts() as server:
        server.hung = fault == "hung"
        server.found = [{"nothing": "of the kind"}]
        if fault == "down":
            server.stop()
        started = time.monotonic()
        with progress_shown(DELIVERY, server.url, Console(file=io.StringIO())):
            time.sleep(0.1)
    assert time.monotonic() - started < 20

"""A command waits for what its flows still do, as long as Prefect says that they do something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flows import settling
from flows.settling import wait_for_flows
from tests.fakes.wire import Answer, Drop, WireServer
from tests.services.ports import free_port


class Counting(WireServer):
    """Answers with the next of `counts`, the last for ever, or does not; None is what Prefect says while SQLite is locked."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int | type[Drop] | None] = [0]
        self.asked: list[Any] = []

    def answer(self, method: str, path: str, body: Any) -> Answer:
        self.asked.append((method, path, body))
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        if count is Drop:
            raise Drop
        return Answer("locked", 503) if count is None else Answer(count)


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    monkeypatch.setattr(settling, "EVERY_S", 0.01)
    server = Counting()
    server.start()
    yield server
    server.stop()


def test_it_waits_until_no_flow_run_of_these_tags_does_anything(prefect: Counting) -> None:
    prefect.counts = [2, None, Drop, 0]
    assert wait_for_flows(f"{prefect.base_url}/api", "run:a", "step:3")
    assert len(prefect.asked) == 4
    method, path, body = prefect.asked[0]
    assert (method, path) == ("POST", "/api/flow_runs/count")
    assert body["flow_runs"]["tags"] == {"all_": ["run:a", "step:3"]}
    assert "SCHEDULED" not in body["flow_runs"]["state"]["type"]["any_"]


def test_it_does_not_wait_for_ever_nor_for_a_prefect_that_is_away(prefect: Counting) -> None:
    prefect.counts = [1]
    assert not wait_for_flows(prefect.base_url, "run:a", within_s=0.1)
    assert not wait_for_flows(f"http://127.0.0.1:{free_port()}", "run:a")

"""A killed flow begins again only if that can give its point a number; whatever says no says so before Prefect is asked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Crashed

from flows.beginning_again import STARTS, begins_again
from infra import leases
from infra.handover import take
from infra.model import LedgerTry
from infra.records import commit
from infra.snapshot import new_prefix
from infra.store import Store
from tests.fakes.wire import Answer, WireServer
from tests.infra.examples import POINT, SKIPPED, request


class Prefect(WireServer):
    """Knows one flow run, which was started so often, and takes any state for it."""

    starts = 1

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if path.endswith("/set_state"):
            return Answer({"status": "ACCEPT", "details": {"type": "accept_details"}, "state": body["state"]}, 201)
        if "/flow_runs/" in path:
            return Answer({"id": str(RUN.id), "flow_id": str(RUN.flow_id), "run_count": self.starts})
        if "csrf" in path:
            return Answer({"detail": "CSRF protection is disabled."}, 422)
        return Answer('"3.9.1"')

    def states(self) -> list[str]:
        return [body["state"]["name"] for _, path, body in self.requests if path.endswith("/set_state")]


RUN = FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4())
TRY = LedgerTry(key="0" * 32, number=1, id="c")


@pytest.fixture
def prefect() -> Iterator[Prefect]:
    with Prefect() as server, temporary_settings({PREFECT_API_URL: f"{server.base_url}/api"}):
        yield server


def test_one_that_was_killed_once_is_started_again(prefect: Prefect, tmp_path: Path) -> None:
    assert begins_again(request(store_url=tmp_path.as_uri()), RUN, Crashed(message="killed"))
    assert prefect.states() == ["AwaitingRetry"]


def test_what_it_had_exported_is_left_to_its_next_start_and_to_no_other(prefect: Prefect, tmp_path: Path) -> None:
    store, prefixes = Store(tmp_path.as_uri()), [new_prefix(POINT), new_prefix(POINT)]
    for prefix, by in zip(prefixes, (str(RUN.id), str(uuid.uuid4())), strict=True):
        leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export", by=by)
    assert begins_again(request(store_url=store.url), RUN, Crashed())
    taken = take(store, POINT, str(RUN.id))
    assert taken is not None
    assert taken[0] == prefixes[0]


def test_one_that_was_killed_before_is_not(prefect: Prefect, tmp_path: Path) -> None:
    prefect.starts = STARTS
    assert not begins_again(request(store_url=tmp_path.as_uri()), RUN, Crashed())
    assert prefect.states() == []


@pytest.mark.parametrize("why", ["cancelled", "of the ledger", "has its record"])
def test_one_that_must_not_does_not(prefect: Prefect, tmp_path: Path, why: str) -> None:
    state: State[Any] = Cancelled() if why == "cancelled" else Crashed()
    asked = request(store_url=tmp_path.as_uri())
    if why == "of the ledger":
        asked = asked.model_copy(update={"ledger": TRY})
    if why == "has its record":
        commit(Store(asked.store_url), SKIPPED)
    assert not begins_again(asked, RUN, state)
    assert prefect.requests == []

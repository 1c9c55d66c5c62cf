"""`pinpoint up --with-automations`: a team hears of what it should, through a block of its own, and of nothing else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock

from flows.automations import EXAMPLES, register
from infra.alarms import FINAL, SKIPS
from infra.errors import ConfigError
from infra.model import Comparison, EvalPoint, EvalReport, PairedDifference, SkippedPoint
from infra.records import commit, find
from tests.end_to_end.points import Points, has_ended, state_of, wait_until
from tests.infra.examples import report_at, request
from tests.services.stack import RunningStack
from tests.services.waiting import patiently
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox
from trainer_integration.prefect_api import PrefectApi
from trainer_integration.submit import Submitter

BLOCK = "custom-webhook/pinpoint-test"


class Heard:
    """A web hook that remembers what it was told, as subject and body."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        heard = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                heard.told.append((told["subject"], told["body"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, run: str) -> list[tuple[str, str]]:
        """What it was told of one run: a message of another one may come late."""
        return sorted(told for told in self.told if told[0].startswith(f"Pinpoint: {run} "))


@pytest.fixture(scope="module")
def registered(services: RunningStack) -> Iterator[Heard]:
    """The examples notify it; they are gone afterwards."""
    hook = Heard()
    block = CustomWebhookNotificationBlock(
        name="pinpoint-test", url=hook.url, json_data={"subject": "{{subject}}", "body": "{{body}}"}
    )
    with services.known():
        asyncio.run(block.asave("pinpoint-test", overwrite=True))
        assert asyncio.run(register(BLOCK)) == [example.name for example in EXAMPLES]
        wait_until_active(services, hook)
        yield hook
    hook.server.shutdown()
    for automation in automations(services):
        services.asked("DELETE", f"/automations/{automation['id']}")


def wait_until_active(services: RunningStack, hook: Heard) -> None:
    """Prefect reads an automation some time after it was registered, and what happens until then triggers nothing."""
    with closing(PrefectApi(services.stack.prefect_api_url)) as api:
        for number in range(60):
            point = EvalPoint(run=f"probe-{number}", step=number)
            asked = request(store_url=services.file_url("probes")).model_copy(update={"point": point})
            skip = SkippedPoint(point=point, suite="suite", reason="busy", message="", export_time_seconds=0, finished_at="")
            delivery = Delivery.of(asked, DEPLOYMENT, skip)
            tagged = delivery.model_copy(update={"tags": (*delivery.tags, FINAL, SKIPS)})
            patiently(partial(api.create_flow_run, tagged))
            with suppress(AssertionError):
                return wait_until(partial(_was_told_of, hook, point.run), 2)
    raise AssertionError("the automations never became active")


def _was_told_of(hook: Heard, run: str) -> bool:
    return len(hook.of(run)) == 2


def automations(services: RunningStack) -> list[dict[str, object]]:
    found: list[dict[str, object]] = services.post("/automations/filter", {})
    return [one for one in found if str(one["name"]).startswith("pinpoint: ")]


def test_a_skipped_final_point_and_three_skips_in_a_row_are_told_of(registered: Heard, points: Points, tmp_path: Path) -> None:
    """As a trainer delivers them: no flow process is ever started for them."""
    submitter = Submitter(Outbox(tmp_path / "outbox"), points.store, points.services.stack.prefect_api_url)
    try:
        for step, final in ((20, False), (40, False), (60, False), (80, True)):
            point = EvalPoint(run=points.run, step=step, final=final)
            asked = request(store_url=points.store.url).model_copy(update={"point": point})  # nothing was staged for it
            skip = SkippedPoint(
                point=point, suite="suite", reason="busy", message=f"at {step}", export_time_seconds=0, finished_at=""
            )
            submitter.skip(Delivery.of(asked, DEPLOYMENT, skip), None)
            assert submitter.drained(60)
    finally:
        submitter.close()
    row, last = (f"Pinpoint: {points.run} · step {step:06d}" for step in (60, 80))
    with suppress(AssertionError):  # what was heard says more
        wait_until(lambda: len(registered.of(points.run)) == 3, 60)
    told = registered.of(points.run)
    assert [subject for subject, _ in told] == [row, last, last]
    assert {body.splitlines()[1] for _, body in told} == {
        f"{points.run} · step 000060: busy: at 60",
        f"{points.run} · step 000080: busy: at 80",
    }


def test_a_regression_is_told_of_when_its_point_is_measured(registered: Heard, points: Points) -> None:
    """A real flow, whose record is there already, as of a flow that was killed after it had committed."""
    asked = points.request(20)
    lower = PairedDifference(mean=-0.2, stderr=0.05, n=50, gained=0, lost=10, low=-0.3, high=-0.1, p_value=0.01, method="tango")
    compared = Comparison(dataset="rows", against="previous", other=EvalPoint(run=points.run, step=0), difference=lower)
    report = replace(report_at(20), point=asked.point, suite="suite", comparisons=(compared,))
    assert isinstance(commit(points.store, report), EvalReport)
    points.submit(asked)
    wait_until(lambda: has_ended(points.services, points.run), 240)
    assert state_of(points.services, points.run)["state"]["name"] == "Completed"
    wait_until(lambda: bool(registered.of(points.run)), 60)
    [(subject, body)] = registered.of(points.run)
    assert subject == f"Pinpoint: {points.run} · step 000020"
    [flow_run] = points.services.flow_runs(points.run)
    assert "regression" in flow_run["tags"]
    assert "step 000020: lower than the point before: rows -0.200" in body
    assert find(points.store, asked.point, "suite") == report


def test_they_are_registered_once_and_keep_what_people_made_of_them(registered: Heard, services: RunningStack) -> None:
    first = automations(services)
    asyncio.run(register(None))
    assert {one["name"] for one in first} == {example.name for example in EXAMPLES}
    assert [action["type"] for one in first for action in one["actions"]] == ["send-notification"] * len(EXAMPLES)  # type: ignore[attr-defined]
    services.asked("PATCH", f"/automations/{first[0]['id']}", {"enabled": False})
    asyncio.run(register(BLOCK))
    asyncio.run(register(None))
    again = {one["id"]: one for one in automations(services)}
    assert again.keys() == {one["id"] for one in first}
    assert again[first[0]["id"]]["enabled"] is False
    assert [action["type"] for one in again.values() for action in one["actions"]] == ["send-notification"] * len(EXAMPLES)  # type: ignore[attr-defined]


def test_a_block_that_is_not_there_is_named_with_the_remedy(registered: Heard) -> None:
    with pytest.raises(ConfigError, match="no block slack-webhook/nobody in Prefect"):
        asyncio.run(register("slack-webhook/nobody"))
    with pytest.raises(ConfigError, match="TYPE/NAME"):
        asyncio.run(register("nobody"))

"""What Prefect does not take, or takes too long for, is not shown; the point has its record all the same."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from infra.model import Delivered, EvalPoint, EvalReport, SkippedPoint
from infra.records import commit, find, history, write_samples
from infra.store import Store
from tasks import alarms as alarming
from tasks import history as histories
from tasks import report as reporting
from tasks import showing
from tasks import skip as skipping
from tasks.history import show_history
from tests.infra.examples import POINT, RESULT, SKIPPED, SNAPSHOT, dataset, jsonl, report_at, request, sample


class Prefect:
    """What its client was asked to show; a fault is what the client raises, or how long it hangs."""

    def __init__(self) -> None:
        self.shown: dict[str, list[Any]] = {}
        self.fails: Exception | None = None
        self.hangs_s = 0.0

    async def create(self, content: Any, key: str | None = None, description: str | None = None) -> uuid.UUID:
        await asyncio.sleep(self.hangs_s)
        if self.fails is not None:
            raise self.fails
        self.shown.setdefault(key or str(description), []).append(content)
        return uuid.uuid4()

    async def tag(self, tag: str) -> None:
        await self.create(tag, key="tag")


def refused(status: int) -> PrefectHTTPStatusError:
    asked = httpx.Request("POST", "http://127.0.0.1:4200/api/artifacts/")
    return PrefectHTTPStatusError("no\nmore", request=asked, response=httpx.Response(status, request=asked))


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Prefect:
    made = Prefect()
    for module in (histories, reporting):
        monkeypatch.setattr(module, "acreate_table_artifact", made.create)
        monkeypatch.setattr(module, "acreate_markdown_artifact", made.create)
    for module in (skipping, alarming):
        monkeypatch.setattr(module, "tag_run", made.tag)
    return made


async def reported(folder: Path) -> EvalReport | SkippedPoint:
    """What the task gives for a point with one dataset, whose samples are in the store."""
    store = Store(folder.as_uri())
    rows = jsonl(folder / "sums.jsonl", '{"prompt": "1+1=", "answer": "2"}')
    asked = request(store_url=store.url)
    asked = asked.model_copy(update={"suite": asked.suite.model_copy(update={"datasets": (dataset(source=rows),)})})
    location = write_samples(store, POINT, "suite", "sums", [sample("p"), sample("q", reward=0.0, response="<b>3</b>")])
    results = [replace(RESULT, samples_location=location)]
    return await reporting.report.fn(asked, Delivered(snapshot=SNAPSHOT), results, {"run datasets": 1.0})


FAULTS = (refused(503), refused(413), httpx.ConnectError("refused"), RuntimeError("a bug"), ValueError("nan"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{type(fault).__name__}")
async def test_a_prefect_that_takes_nothing_costs_the_artifacts_and_not_the_report(
    tmp_path: Path, prefect: Prefect, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    prefect.fails = fault
    record = await reported(tmp_path)
    assert isinstance(record, EvalReport)
    assert find(Store(tmp_path.as_uri()), POINT, "suite") == record
    assert prefect.shown == {}
    for what in ("the scores of run", "the report of run", "the table of run", "the curve of run"):
        assert any(what in message and "is not shown" in message and "\n" not in message for message in caplog.messages)


async def test_a_prefect_that_never_answers_is_waited_for_once_and_not_for_each_artifact(
    tmp_path: Path, prefect: Prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "DEADLINE_S", 0.3)
    prefect.hangs_s = 3600.0
    async with asyncio.timeout(20):
        assert isinstance(await reported(tmp_path), EvalReport)


async def test_a_point_shows_its_scores_its_page_with_transcripts_and_its_run(tmp_path: Path, prefect: Prefect) -> None:
    await reported(tmp_path)
    assert set(prefect.shown) == {f"Scores of {POINT.name}", f"Report of {POINT.name}", "history-run", "curve-run"}
    [page] = prefect.shown[f"Report of {POINT.name}"]
    for text in ("### Right: sums", "### Wrong: sums", "<b>3</b>", f"--store {tmp_path.as_uri()}"):
        assert text in page
    [curve] = prefect.shown["curve-run"]
    assert "data:image/png;base64," in curve


async def test_samples_that_are_gone_cost_the_transcripts_and_not_the_page(
    tmp_path: Path, prefect: Prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "TRANSCRIPTS_DEADLINE_S", 0.0)
    await reported(tmp_path)
    [page] = prefect.shown[f"Report of {POINT.name}"]
    assert "The samples were not read within 0 s." in page
    assert "## Time" in page


async def test_a_point_that_was_given_up_before_is_tagged_as_the_skip_that_it_is(tmp_path: Path, prefect: Prefect) -> None:
    commit(Store(tmp_path.as_uri()), SKIPPED)
    assert await reported(tmp_path) == SKIPPED
    assert prefect.shown["tag"] == ["skipped:busy"]


async def test_a_skip_is_a_skip_though_prefect_does_not_take_its_tag(tmp_path: Path, prefect: Prefect) -> None:
    prefect.fails = refused(503)
    assert await skipping.skip.fn(request(store_url=tmp_path.as_uri()), SKIPPED) == SKIPPED


async def test_two_runs_of_a_suite_are_compared_and_one_alone_is_not(tmp_path: Path, prefect: Prefect) -> None:
    store = Store(tmp_path.as_uri())
    for run in ("one", "two"):
        commit(store, report_at(0, run=run))
        await show_history(store, run, "suite")
        assert ("comparison-suite" in prefect.shown) == (run == "two")
    [page] = prefect.shown["comparison-suite"]
    assert "[two](../key/curve-two)" in page
    assert "[one](../key/curve-one)" in page


async def test_the_newest_points_come_first_and_very_long_runs_are_cut(
    tmp_path: Path, prefect: Prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "MOST_ROWS", 3)
    store = Store(tmp_path.as_uri())
    for step in range(5):
        commit(store, report_at(step))
    await show_history(store, "run", "suite")
    [rows] = prefect.shown["history-run"]
    assert [row["step"] for row in rows] == ["4", "3", "2"]
    assert len(history(store, "run")) == 5


async def test_a_run_with_very_many_metrics_has_few_rows_of_them(tmp_path: Path, prefect: Prefect) -> None:
    store = Store(tmp_path.as_uri())
    for step in range(30):
        commit(store, replace(report_at(step), results=(), metrics={f"task{number}": 0.5 for number in range(500)}))
    await show_history(store, "run", "suite")
    [rows] = prefect.shown["history-run"]
    assert [row["step"] for row in rows] == [str(step) for step in range(29, 19, -1)]
    assert len(json.dumps(rows)) < 200_000


async def test_an_artifact_that_fails_costs_no_other_of_the_run(
    tmp_path: Path, prefect: Prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*given: Any, **named: Any) -> None:
        raise refused(413)

    monkeypatch.setattr(histories, "acreate_table_artifact", refuse)
    store = Store(tmp_path.as_uri())
    commit(store, report_at(0))
    await show_history(store, "run", "suite")
    assert set(prefect.shown) == {"curve-run"}


@pytest.mark.parametrize("error", [ObjectNotFound(ValueError("deleted")), refused(503), RuntimeError("ours")])
async def test_a_notification_that_fails_costs_nothing_but_itself(
    prefect: Prefect, tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path.as_uri())
    for step in (20, 40, 60):
        point = EvalPoint(run="run", step=step)
        last = SkippedPoint(point=point, suite="suite", reason="busy", message="", export_time_seconds=0, finished_at="")
        commit(store, last)
    prefect.fails = error
    await alarming.raise_alarm(request(store_url=store.url), last)
    assert "the alarm of run · step 000060 is not shown" in caplog.text

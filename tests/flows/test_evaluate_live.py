"""A live engine that hangs is found while the trainer waits, and does not hold up the point until its deadline."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from flows import evaluate_live
from infra import attaching
from infra.model import DatasetResult, EvalPoint, LiveFleet, LiveRequest, Pinned, Suite
from infra.roster import Roster
from tests.fakes.engine import FakeEngine
from tests.infra.examples import dataset, report_at

KEY = "engine-key"


async def test_an_engine_that_hangs_is_asked_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = report_at(40)
    with ExitStack() as stack:
        engines = [stack.enter_context(FakeEngine(KEY)) for _ in range(2)]
        for engine in engines:
            engine.version = "17"

        async def attach(request: LiveRequest) -> LiveFleet:
            return await attaching.attach(request, KEY)

        async def run_datasets(fleet: Pinned, suite: Suite, store_url: str, roster: Roster) -> list[DatasetResult]:
            engines[1].hangs.add("/server_info")
            async with asyncio.timeout(20):
                while await roster.engine(1) == fleet.engines[1]:  # noqa: ASYNC110 - it is a look, not an event
                    await asyncio.sleep(0.02)
            return list(record.results)

        async def confirm(fleet: LiveFleet) -> None:
            return None

        async def report(*_: object) -> object:
            return record

        for name, fake in (("attach", attach), ("run_datasets", run_datasets), ("confirm", confirm), ("report", report)):
            monkeypatch.setattr(evaluate_live, name, fake)
        monkeypatch.setattr(evaluate_live, "HANG_TIMEOUT_S", 0.4)
        asked = LiveRequest(
            point=EvalPoint(run="run", step=40),
            engines=tuple(engine.base_url for engine in engines),
            suite=Suite(name="suite", datasets=(dataset(),)),
            store_url=(tmp_path / "store").as_uri(),
        )
        assert await evaluate_live._measure(asked, {}) == record

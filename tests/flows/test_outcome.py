"""A point that failed leaves its record, and nothing that only its flow could have gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.outcome import Phases, recorded
from infra.model import EvalReport, SkippedPoint
from infra.records import find
from infra.running.sample_log import logs_prefix
from infra.store import Store
from tests.infra.examples import POINT, request


async def test_a_bug_of_ours_fails_the_flow_with_a_record_and_without_the_samples_that_were_drawn(tmp_path: Path) -> None:
    store = Store((tmp_path / "store").as_uri())
    asked = request(store_url=store.url)

    async def measure(phases: Phases) -> EvalReport | SkippedPoint:
        store.write(f"{logs_prefix(POINT, asked.suite.name)}/sums/0/000000.jsonl", b"{}")
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await recorded(asked, 60.0, measure)
    record = find(store, POINT, asked.suite.name)
    assert isinstance(record, SkippedPoint)
    assert (record.reason, record.message) == ("crashed", "KeyError: 'bug'")
    assert list(store.list("")) == [f"runs/run/points/{POINT.key}/{asked.suite.name}/record.json"]

"""A comparison that takes too long is left out with its reason; the report does not wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.records import commit, write_samples
from infra.store import Store
from tasks import report
from tests.infra.examples import report_at, sample


@pytest.mark.parametrize(("deadline_s", "reason"), [(0.0, "not read within 0 s"), (60.0, "")])
async def test_a_store_that_is_slow_costs_the_comparison_and_not_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_s: float, reason: str
) -> None:
    store = Store(tmp_path.as_uri())
    for step in (0, 20):
        write_samples(store, report_at(step).point, "suite", "sums", [sample("p"), sample("q")])
    commit(store, report_at(0))
    monkeypatch.setattr(report, "COMPARISON_DEADLINE_S", deadline_s)
    made = await report._compared(store, report_at(20))
    assert [one.against for one in made.comparisons] == ["previous", "baseline"]
    assert all(reason in one.reason and bool(one.difference) != bool(reason) for one in made.comparisons)

"""The same of trackio, where it is installed: its pillow is older than the one that Pinpoint is tested with (docs/sinks.md)."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from infra.model import EvalReport, SkippedPoint
from infra.records import commit
from infra.sinks import Place
from infra.sinks.projection import project
from infra.store import Store
from tests.infra.examples import SKIPPED, report_at


@pytest.mark.slow
def test_points_land_at_their_own_step_in_trackio_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    storage: Any = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    place = Place(store=Store(tmp_path.as_uri()), run="run", home=tmp_path / "home", project=uuid.uuid4().hex)
    batches: list[list[EvalReport | SkippedPoint]] = [[report_at(40)], [report_at(20), SKIPPED], []]
    for records in batches:
        for record in records:
            commit(place.store, record)
        assert project("trackio", place)[1] == len(records)
    found = storage.get_logs(place.project, "run-eval")
    rows = [(row["step"], row["eval/step"], row.get("eval/sums"), row.get("eval/skipped_busy")) for row in found]
    assert sorted(rows, key=str) == [(10, 10.0, None, 1.0), (20, 20.0, 0.5, None), (40, 40.0, 0.5, None)]

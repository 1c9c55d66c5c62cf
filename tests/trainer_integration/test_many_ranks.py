"""In a job of many ranks rank 0 decides for all, all export together, and none waits for one that has given up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.config import Settings
from infra.errors import StoreError
from tests.services.ports import free_port
from tests.services.ranks import on_ranks
from tests.trainer_integration.conftest import SUITE
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.sharded.ranks import Ranks

pytestmark = pytest.mark.slow
FAILS_AT, CRASHES_AT = 20, 40


class Parts:
    """A collective exporter: every rank writes its own part; rank 1 fails at the second export."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.calls = ranks, 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        if self.calls == FAILS_AT // 10 and self.ranks.rank == 1:
            raise OSError(28, "No space left on device")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{self.ranks.rank}").write_text("weights")


def settings(home: Path, **changes: Any) -> Settings:
    """Prefect is away, so that what was submitted stays in the outbox to be looked at."""
    return Settings(home=home, staging_dir=home / "staging", prefect_api_url=f"http://127.0.0.1:{free_port()}/api", **changes)


def job(rank: int, home: Path) -> tuple[list[str | None], int]:
    """What `on_step` said of each due step on this rank, and how often it exported."""
    export = Parts(Ranks.of_job())
    dispatch = DispatchSettings(run="run", suite=SUITE, every=10, max_in_flight=2, overflow_policy="skip")
    dispatcher = EvalDispatcher(dispatch, settings(home), export)
    said: list[str | None] = []
    for step, final in ((5, False), (10, False), (20, False), (30, False), (40, False), (40, True)):
        done = dispatcher.on_step(step, final=final)
        said.append(None if done is None else (done.skipped or "submitted"))
    dispatcher.close()
    return said, export.calls


def refused(rank: int, home: Path) -> str:
    (home / "file").write_text("in the way")
    dispatch = DispatchSettings(run="run", suite=SUITE, every=10)
    try:
        EvalDispatcher(dispatch, settings(home, store_url=(home / "file" / "store").as_uri()), Parts(Ranks.of_job()))
    except StoreError as error:
        return str(error)
    return ""


def test_rank_0_decides_all_export_together_and_a_failure_on_one_rank_is_a_skipped_point(tmp_path: Path) -> None:
    (first, exports), (second, others) = on_ranks(2, job, tmp_path)
    assert first == [None, "submitted", "export_failed", "submitted", "busy", "submitted"]
    assert second == [None] * 6
    assert exports == others == 4  # not for `busy`, and again for the final point, which is never skipped
    asked = [json.loads(file.read_text()) for file in sorted((tmp_path / "outbox").glob("*.json"))]
    staged = [Path(each["parameters"]["request"]["source"]["path"]) for each in asked if each["skip"] is None]
    assert [sorted(file.name for file in folder.iterdir()) for folder in staged] == [["part-0", "part-1"]] * 3
    assert {each["skip"]["reason"]: each["skip"]["message"] for each in asked if each["skip"]} == {
        "export_failed": "StagingFailed: the model could not be staged, rank 1: OSError: [Errno 28] No space left on device",
        "busy": "2 points in flight, max_in_flight is 2",
    }
    assert len(list((tmp_path / "staging").glob("staged/*/*"))) == 3


def test_settings_that_rank_0_refuses_are_refused_on_every_rank(tmp_path: Path) -> None:
    said = on_ranks(2, refused, tmp_path)
    assert said[0] == said[1]
    assert "file/store" in said[0]

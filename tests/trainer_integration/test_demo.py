"""However the demo's trainer ends, each of its points has a record, and the demo never ends well with a point missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.demo import DemoOptions, run_demo
from flows.stack import Stack
from infra import records
from infra.config import Settings
from infra.errors import ConfigError, PinpointError, TrainingFailed
from infra.model import EvalPoint, SkippedPoint
from infra.store import Store
from tests.infra.examples import report_at


def event(name: str, **data: Any) -> str:
    return json.dumps({"event": name, **data})


def dispatched(step: int) -> str:
    return event("dispatched", step=step, attempt=0, suite="suite", export_time_seconds=0.5, waited_seconds=0.0, skipped=None)


class Demo:
    """The demo with a scripted process in its trainer's place."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self.folder, self.patched = folder, patched
        self.settings = Settings(home=folder, staging_dir=folder / "staging")
        self.store = Store(self.settings.store)

    def run(self, *lines: str, code: int = 0) -> None:
        said, script = self.folder / "said", self.folder / "python"
        said.write_text("".join(line + "\n" for line in lines))
        script.write_text(f"#!/bin/sh\ncat '{said}'\nexit {code}\n")
        script.chmod(0o755)
        self.patched.setattr(sys, "executable", str(script))
        stack = Stack(prefect_api_url="http://127.0.0.1:1/api", ray_address="", logs=self.folder)
        run_demo(DemoOptions(run="run"), self.settings, stack, Console(quiet=True))

    def record(self, step: int) -> object:
        return records.find(self.store, EvalPoint(run="run", step=step), "suite")


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    return Demo(tmp_path, monkeypatch)


def test_points_that_the_trainer_gave_up_fail_the_demo_by_name_and_get_a_record(demo: Demo) -> None:
    records.commit(demo.store, report_at(0))
    with pytest.raises(TrainingFailed, match="step 20, 40 of run"):
        demo.run(dispatched(0), dispatched(20), dispatched(40), event("trained"), event("missing", steps=[20, 40]))
    assert demo.record(0) == report_at(0)
    for step in (20, 40):
        record = demo.record(step)
        assert isinstance(record, SkippedPoint)
        assert (record.reason, record.export_time_seconds) == ("crashed", 0.5)


def test_a_record_that_came_after_the_trainer_gave_its_point_up_is_kept_and_the_demo_says_so(demo: Demo) -> None:
    records.commit(demo.store, report_at(20))
    with pytest.raises(TrainingFailed, match="step 20 of run"):
        demo.run(dispatched(20), event("trained"), event("missing", steps=[20]))
    assert demo.record(20) == report_at(20)


def test_a_crashed_trainer_is_not_bad_input_and_its_points_get_a_record(demo: Demo) -> None:
    with pytest.raises(TrainingFailed, match=r"ended with code 3; see .*trainer\.log") as failure:
        demo.run(dispatched(20), code=3)
    assert not isinstance(failure.value, ConfigError)
    assert isinstance(demo.record(20), SkippedPoint)


def test_what_the_trainer_says_of_its_own_failure_is_the_error(demo: Demo) -> None:
    with pytest.raises(PinpointError, match="^say it so$") as failure:
        demo.run(event("error", message="say it so", bad_input=True), code=2)
    assert type(failure.value) is PinpointError


def test_a_producer_that_failed_is_not_bad_input(demo: Demo) -> None:
    with pytest.raises(TrainingFailed, match="^the rollout producer was killed$"):
        demo.run(event("error", message="the rollout producer was killed", bad_input=False), code=1)


def test_a_demo_that_ends_well_leaves_its_records_as_they_are(demo: Demo, caplog: pytest.LogCaptureFixture) -> None:
    records.commit(demo.store, report_at(20))
    demo.run(dispatched(20), event("trained"))
    assert records.history(demo.store, "run") == [report_at(20)]
    assert caplog.messages == []


def test_a_point_that_was_neither_measured_nor_told_as_missing_fails_the_demo_too(demo: Demo) -> None:
    with pytest.raises(TrainingFailed, match="step 20 of run"):
        demo.run(dispatched(20), event("trained"))
    assert isinstance(demo.record(20), SkippedPoint)


def test_a_store_that_is_down_does_not_hide_how_the_demo_ended(demo: Demo, caplog: pytest.LogCaptureFixture) -> None:
    (demo.folder / "store").write_text("a file in the way")
    with pytest.raises(TrainingFailed):
        demo.run(dispatched(20), code=3)
    assert "run · step 000020 has no record, and none could be left" in caplog.text

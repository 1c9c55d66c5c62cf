"""In reuse mode nothing is exported, nothing is owned, and every due step has a checkpoint that the trainer saves anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from infra.errors import ConfigError
from tests.fakes.prefect_server import FakePrefect
from tests.trainer_integration.conftest import SUITE, Trainer, until
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher

SAVED = "/runs/x/iter_{step}"


def source_of(prefect: FakePrefect, number: int) -> dict[str, Any]:
    until(lambda: len(prefect.runs) > number)
    source: dict[str, Any] = prefect.runs[number].body["parameters"]["request"]["source"]
    return source


@pytest.mark.parametrize("pattern", [SAVED, "/runs/x/iter_{rollout_id}"])
def test_a_due_step_is_measured_where_the_trainer_saved_it(trainer: Trainer, prefect: FakePrefect, pattern: str) -> None:
    dispatcher = trainer.start(every=20, save_hf=pattern, save_interval=10)
    assert dispatcher.on_step(10) is None
    done = dispatcher.on_step(20)
    assert done is not None
    assert done.export_time_seconds == 0.0
    assert source_of(prefect, 0) == {"path": "/runs/x/iter_20", "staged": False, "parts": [], "base": None}
    assert trainer.export.folders == []


def test_no_exporter_is_needed(trainer: Trainer, prefect: FakePrefect) -> None:
    dispatch = DispatchSettings(run="run", suite=SUITE, every=10, save_hf=SAVED, save_interval=10)
    dispatcher = EvalDispatcher(dispatch, trainer.settings)
    trainer.stack.callback(dispatcher.close)
    assert dispatcher.on_step(10) is not None
    assert source_of(prefect, 0)["path"] == "/runs/x/iter_10"
    with pytest.raises(ConfigError, match="an exporter is needed"):
        EvalDispatcher(DispatchSettings(run="run", suite=SUITE, every=10), trainer.settings)


def test_the_baseline_is_measured_on_what_training_starts_from(trainer: Trainer, prefect: FakePrefect, tmp_path: Path) -> None:
    dispatcher = trainer.start(baseline_checkpoint=str(tmp_path / "base"))
    assert dispatcher.baseline() is not None
    assert (source_of(prefect, 0)["path"], source_of(prefect, 0)["staged"]) == (str(tmp_path / "base"), False)
    dispatcher.on_step(10)
    assert source_of(prefect, 1)["staged"] is True


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"save_hf": SAVED}, "save_interval = None"),
        ({"save_hf": SAVED, "save_interval": 4}, "every = 10 is no multiple of save_interval = 4"),
        ({"save_hf": "/runs/x/latest", "save_interval": 10}, "must hold {step} or {rollout_id}"),
        ({"save_hf": "/runs/{name}/{step}", "save_interval": 10}, "must hold {step} or {rollout_id}"),
        ({"save_interval": 10}, "of no use without save_hf"),
        ({"save_hf": SAVED, "save_interval": 10, "keep_snapshots": 2}, "no effect on saved checkpoints"),
    ],
)
def test_a_combination_that_cannot_be_meant_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DispatchSettings(run="run", suite=SUITE, every=10, **wrong)

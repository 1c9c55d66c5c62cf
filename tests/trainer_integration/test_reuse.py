"""In reuse mode nothing is exported, nothing is owned, and every due step has a checkpoint that the trainer saves anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from pydantic import ValidationError

from infra.errors import ConfigError
from tests.fakes.prefect_server import FakePrefect
from tests.services.waiting import until
from tests.trainer_integration.conftest import SUITE, Trainer
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.eval_options import EvalOptions

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


PATTERNS = [
    ("/runs/x/{step:q}", "can't be filled in with a step"),
    ("/runs/x/{step!z}", "can't be filled in with a step"),
    ("/runs/x/{step:{width}}", "can't be filled in with a step"),
    ("/runs/x/{step", "can't be filled in with a step"),
    ("/runs/x/{step:c}", "can't be filled in with a step"),
    ("/runs/x/{step:.1e}", "names one place for several steps"),
    ("gs://bucket/{step}", "use a folder, or s3://bucket/prefix"),
]


@pytest.mark.parametrize(("pattern", "said"), PATTERNS)
def test_a_pattern_that_does_not_say_where_each_step_is_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DispatchSettings(run="run", suite=SUITE, every=10, save_hf=pattern, save_interval=10)


@pytest.mark.parametrize(("pattern", "said"), PATTERNS)
def test_a_flag_with_such_a_pattern_is_refused_alike(pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EvalOptions.load(
            eval_interval=10,
            eval_num_gpus=1,
            eval_prompt_data=("sums", "x"),
            save_hf=pattern.replace("step", "rollout_id"),
            save_interval=10,
        )


def test_what_is_saved_in_a_bucket_is_read_there(trainer: Trainer, prefect: FakePrefect) -> None:
    dispatcher = trainer.start(save_hf="s3://bucket/x/{step:06d}", save_interval=10, baseline_checkpoint="s3://bucket/base/")
    dispatcher.baseline()
    dispatcher.on_step(10)
    dispatcher.evaluate(13, "s3://bucket/y")
    places = [source_of(prefect, number)["path"] for number in range(3)]
    assert places == ["s3://bucket/base", "s3://bucket/x/000010", "s3://bucket/y"]


def test_a_hub_id_is_the_folder_that_the_local_cache_has_for_it(
    trainer: Trainer, prefect: FakePrefect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (refs := tmp_path / "hub" / "models--owner--name" / "refs").mkdir(parents=True)
    (refs / "main").write_text("f" * 40)
    (folder := refs.parent / "snapshots" / ("f" * 40)).mkdir(parents=True)
    dispatcher = trainer.start(baseline_checkpoint="owner/name")
    dispatcher.baseline()
    dispatcher.evaluate(3, "owner/name")
    dispatcher.evaluate(4, "owner/another")
    places = [source_of(prefect, number)["path"] for number in range(3)]
    assert places == [str(folder), str(folder), str(Path.cwd() / "owner/another")]


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("owner/name", "hf download owner/name"),
        ("runs/nowhere/base", "does not exist"),
        ("gs://bucket/base", "use a folder, or s3://bucket/prefix"),
        ("s3://bucket", "use a folder, or s3://bucket/prefix"),
    ],
)
def test_a_baseline_that_is_nowhere_is_refused_before_training(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, remedy: str
) -> None:
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ConfigError, match=remedy):
        trainer.start(baseline_checkpoint=given)

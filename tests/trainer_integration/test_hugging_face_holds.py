"""A real `transformers.Trainer` with `save_total_limit` keeps what is held until it is released, and otherwise its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from infra import holds
from tests.trainer_integration.test_hugging_face import hugging_face_trainer
from trainer_integration.adapters.hugging_face_holds import respect_holds

pytestmark = pytest.mark.slow
SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}


class AfterSave(TrainerCallback):  # type: ignore[misc]
    """Holds the checkpoint of step 1 from its save on, and lets it go after that of step `until`; notes what is there."""

    def __init__(self, out: Path, until: int) -> None:
        self.held, self.until = out / "checkpoint-1", until
        self.seen: dict[int, set[int]] = {}

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = int(state.global_step)
        if step == 1:
            holds.hold(self.held, "a", by="evaluation", ttl_s=600)
        if step == self.until:
            holds.release(self.held, "a")

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen[int(state.global_step)] = steps(self.held.parent)


def steps(out: Path) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in out.glob("checkpoint-*")}


def test_a_held_checkpoint_outlives_the_limit_and_goes_when_it_is_released(tmp_path: Path) -> None:
    trainer = hugging_face_trainer(tmp_path, **SAVING)
    watching = AfterSave(tmp_path, until=4)
    trainer.add_callback(watching)
    respect_holds(trainer)
    trainer.train()
    assert watching.seen[2] == {1, 2}
    assert watching.seen[3] == {1, 2, 3}
    assert watching.seen[4] == {3, 4}
    assert steps(tmp_path) == {4, 5}


def test_without_it_the_trainer_deletes_what_is_held(tmp_path: Path) -> None:
    trainer = hugging_face_trainer(tmp_path, **SAVING)
    watching = AfterSave(tmp_path, until=5)
    trainer.add_callback(watching)
    trainer.train()
    assert watching.seen[3] == {2, 3}


def test_the_best_and_the_newest_stay_as_with_the_trainers_own_limit(tmp_path: Path) -> None:
    evaluating: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    best = {**evaluating, "metric_for_best_model": "eval_loss"}
    trained = {}
    for name in ("own", "ours"):
        trainer = hugging_face_trainer(tmp_path / name, **SAVING, **best, greater_is_better=True)  # the first is the best
        if name == "ours":
            respect_holds(trainer)
        trainer.train()
        trained[name] = steps(tmp_path / name)
    assert trained["ours"] == trained["own"]


def test_a_trainer_without_a_limit_is_left_as_it_is(tmp_path: Path) -> None:
    trainer = hugging_face_trainer(tmp_path)
    before = list(trainer.callback_handler.callbacks)
    respect_holds(trainer)
    assert trainer.callback_handler.callbacks == before

"""Whatever a dispatcher does, no event of a Trainer raises: what raises in a callback ends the training."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_integration.adapters.hugging_face import TrainingEvents

EVENTS = sorted(name for name in vars(TrainingEvents) if name.startswith("on_"))


class Raising:
    """Of a dispatcher everything that is asked for raises."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"{name} is broken")


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("state", [SimpleNamespace(global_step=10, best_model_checkpoint=None), SimpleNamespace()])
def test_no_event_raises(event: str, stopping: bool, state: Any, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher: Any = Raising()
    events = TrainingEvents(dispatcher, lambda metrics: None, baseline=True, drain_s=1.0)
    args, control = SimpleNamespace(load_best_model_at_end=True), SimpleNamespace(should_training_stop=stopping)
    with caplog.at_level(logging.ERROR):
        getattr(events, event)(args, state, control)
    assert caplog.messages or (event, stopping) == ("on_epoch_end", False)
    getattr(events, event)(None, None, None)


def test_a_tracker_that_fails_once_loses_one_point_and_not_those_after_it() -> None:
    seen = []

    def log(metrics: dict[str, float]) -> None:
        seen.append(metrics["eval/step"])
        if len(seen) == 1:
            raise ConnectionError("the tracker is away")

    dispatcher: Any = SimpleNamespace(new_metrics=lambda: [{"eval/step": 10.0}, {"eval/step": 20.0}])
    TrainingEvents(dispatcher, log, baseline=False, drain_s=0.0)._log_new()
    assert seen == [10.0, 20.0]


def test_every_event_of_a_training_is_among_those() -> None:
    assert EVENTS == ["on_epoch_end", "on_save", "on_step_end", "on_train_begin", "on_train_end"]

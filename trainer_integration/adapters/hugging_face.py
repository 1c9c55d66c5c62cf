"""A `transformers.Trainer`, TRL's trainers among them, is evaluated while it trains by one line before `train()`.

    evaluation = add_evaluation(trainer, dispatch, load_settings())

The baseline is measured when training begins, each due step after its optimizer step, or when the Trainer has saved it, and the
last step always, also if training stops early. Results are logged through the Trainer as they come, with the step they are of
under `eval_step`, which trackers show as `eval/step`. Nothing here raises during training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from infra.config import Settings
from trainer_integration.adapters.hugging_face_export import exporter_of, refuse_unsaved, usable
from trainer_integration.contract import Exporter
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.sharded.ranks import Ranks

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

__all__ = ["TrainingEvents", "add_evaluation", "evaluation_callback", "exporter_of"]
logger = logging.getLogger(__name__)
Log = Callable[[dict[str, float]], None]


def add_evaluation(
    trainer: Trainer,
    dispatch: DispatchSettings,
    settings: Settings,
    export: Exporter | None = None,
    *,
    baseline: bool = True,
    drain_s: float = 0.0,
) -> EvalDispatcher:
    """`export` is by default made of the Trainer's model and its processing class; every rank calls this alike.

    Without `baseline`, the first point is the first due step. With `drain_s`, `train()` returns only when the last points have
    their records, at most so much later. Raises, before training, ConfigError and StoreError as EvalDispatcher does, and
    ConfigError for a model that can't be exported, and for checkpoints that the Trainer does not save when they are due.
    """
    refuse_unsaved(trainer.args, dispatch)
    exporter = usable(dispatch, export, trainer)
    made = EvalDispatcher(dispatch, settings, exporter, ranks=Ranks.of_job() if exporter is None else None)
    log = partial(_log, trainer)
    trainer.add_callback(evaluation_callback(made, log, baseline=baseline, drain_s=drain_s))
    return made


def evaluation_callback(
    dispatcher: EvalDispatcher, log: Log | None = None, *, baseline: bool = True, drain_s: float = 0.0
) -> TrainerCallback:
    """A callback for a Trainer; `log` is called with a point's metrics when it has ended."""
    from transformers import TrainerCallback

    kind: Any = type("PinpointCallback", (TrainingEvents, TrainerCallback), {})
    made: TrainerCallback = kind(dispatcher, log, baseline, drain_s)
    return made


class TrainingEvents:
    """What is done at which event of a Trainer.

    The last step is dispatched at the first event that knows it to be the last: with `load_best_model_at_end`, the Trainer
    has other weights in the model when training has ended.
    """

    def __init__(self, dispatcher: EvalDispatcher, log: Log | None, baseline: bool, drain_s: float) -> None:
        self.dispatcher, self.log, self.baseline, self.drain_s = dispatcher, log, baseline, drain_s
        self._last: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._safely("its baseline", self._begin, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._safely("a step", self._dispatch_if, False, state, control)
        self._safely("the metrics", self._log_new)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """It comes after the last step, too: an early stop is decided when that step has ended."""
        self._safely("a step", self._dispatch_if_stopped, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._safely("a step", self._dispatch_if, True, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._safely("the last step", self._end, args, state)
        self._safely("its last points", self._drain)

    def _begin(self, state: Any) -> None:
        self._last = None
        self.dispatcher.resume(int(state.global_step))
        if self.baseline:
            self._told(self.dispatcher.baseline())

    def _dispatch_if(self, saved: bool, state: Any, control: Any) -> None:
        """If the model of this step is read where the Trainer saves it, or if it is exported."""
        step = int(state.global_step)
        if (self.dispatcher.saved_at(step) is not None) == saved:
            self._dispatch(step, bool(control.should_training_stop))

    def _dispatch_if_stopped(self, state: Any, control: Any) -> None:
        if control.should_training_stop:
            self._dispatch_if(False, state, control)

    def _end(self, args: Any, state: Any) -> None:
        step = int(state.global_step)
        if self._last == step:
            return
        if self.dispatcher.saved_at(step) is None and _has_best_model(args, state):
            logger.warning("pinpoint: step %d is not evaluated as the last: the Trainer has loaded its best model by now", step)
        else:
            self._dispatch(step, True)

    def _dispatch(self, step: int, final: bool) -> None:
        if final:
            self._last = step
        self._told(self.dispatcher.on_step(step, final=final))
        self._log_new()

    def _drain(self) -> None:
        if self.drain_s and not self.dispatcher.drain(self.drain_s):
            logger.warning("pinpoint: not all points had their records %g s after training", self.drain_s)
        self._log_new()

    def _told(self, done: Any) -> None:
        if done is not None and self.log is not None:
            self.log(done.metrics)

    def _log_new(self) -> None:
        for metrics in self.dispatcher.new_metrics():
            if self.log is not None:
                self._safely("log", self.log, metrics)  # each: a tracker that fails once loses one line

    def _safely(self, what: str, work: Callable[..., None], *args: Any) -> None:
        """What raises in a callback would end the training."""
        try:
            work(*args)
        except Exception:
            logger.exception("pinpoint: evaluation of %s went wrong", what)


def _has_best_model(args: Any, state: Any) -> bool:
    return bool(args.load_best_model_at_end and state.best_model_checkpoint)


def _log(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Not by the trainer's own `log`: TRL's would take its training metrics for this line and forget them.

    A logged line makes the Trainer think that its own, which may be due, has been logged.
    """
    from transformers import Trainer

    own_is_due = trainer.control.should_log
    Trainer.log(trainer, {f"eval_{name.removeprefix('eval/')}": value for name, value in metrics.items()})
    trainer.control.should_log = own_is_due

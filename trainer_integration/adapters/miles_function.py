"""Pinpoint behind Miles' own dispatcher: a class for `--eval-function-path`, to which Miles gives a checkpoint and which
gives back what was measured of it.

    --eval-function-path trainer_integration.adapters.miles_function.PinpointEval

The folder is Miles' and is only read. A point that can't be measured raises EvalSkip with its reason, Miles' own if it is
installed.
"""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import ConfigError, EvalSkip
from infra.model import EvalPoint, EvalReport, SkippedPoint
from trainer_integration.dispatcher import EvalDispatcher
from trainer_integration.eval_options import EvalOptions
from trainer_integration.in_flight import last_resort_s
from trainer_integration.metrics import metrics_of

POLL_S = 0.2
GRACE_S = 60.0
CONTRACT, TYPES = ("miles.rollout.checkpoint_eval",), ("miles.rollout.base_types", "slime.rollout.base_types")


@dataclass
class EvalOutput:
    """Of the shape of RolloutFnEvalOutput, where neither Miles nor slime is installed."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] = field(default_factory=dict)


def _theirs(modules: tuple[str, ...], name: str, otherwise: Any) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return otherwise


_Contract: Any = _theirs(CONTRACT, "CheckpointEvalFn", object)


class PinpointEval(_Contract):  # type: ignore[misc]
    """Raises, when it is made, ConfigError and StoreError. Evaluation is on the fleet of this machine's settings."""

    def __init__(self, input: Any) -> None:
        """`input` has Miles' namespace as `args`, or is it."""
        options = EvalOptions.from_namespace(getattr(input, "args", input))
        dispatch = options.dispatch().model_copy(update={"black_box": None})  # that is this class: for Pinpoint, it is a fleet
        if not dispatch.suite.datasets:
            raise ConfigError("there is nothing to evaluate on: set --eval-prompt-data or --eval-config")
        self.dispatcher = EvalDispatcher(dispatch, options.settings(), _exports_nothing)

    async def __call__(self, input: Any) -> Any:
        return await self.evaluate_checkpoint(input.hf_dir, input)

    async def evaluate_checkpoint(self, checkpoint_dir: str, input: Any) -> Any:
        """`input.rollout_id` is the point's step."""
        dispatcher = self.dispatcher
        done = await asyncio.to_thread(dispatcher.evaluate, input.rollout_id, checkpoint_dir)
        if done is None or done.skipped is not None:
            raise _skip(done.skipped if done and done.skipped else "crashed")
        async with asyncio.timeout(last_resort_s(dispatcher.dispatch.deadline_s) + GRACE_S):
            record = await self._record_of(done.point)
        if isinstance(record, SkippedPoint):
            raise _skip(record.reason)
        metrics = {name: value for name, value in metrics_of(record).items() if name != "eval/step"}  # Miles has its own
        return _theirs(TYPES, "RolloutFnEvalOutput", EvalOutput)(data={}, metrics=metrics)

    def dispose(self) -> None:
        self.dispatcher.close()

    async def _record_of(self, point: EvalPoint) -> EvalReport | SkippedPoint:
        while True:
            for record in self.dispatcher.records:
                if record.point == point:
                    return record
            await asyncio.sleep(POLL_S)


def _exports_nothing(folder: Path) -> None:
    raise RuntimeError("Miles exports, and gives the folder")


def _skip(reason: str) -> Exception:
    made: Exception = _theirs(CONTRACT, "EvalSkip", EvalSkip)(reason)
    return made

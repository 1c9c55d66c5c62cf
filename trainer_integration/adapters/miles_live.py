"""A point that the trainer measures itself, and that comes to nothing, is recorded as skipped like any other.

That is in the store and as a `Skipped` run in the Prefect UI, also if the driver dies while it waits. What was measured is the
trainer's own, and is not recorded here.
"""

from __future__ import annotations

import logging
import math

from infra.config import Settings
from infra.errors import ConfigError
from infra.model import BlackBoxSpec, EvalPoint, SkipReason, Suite
from trainer_integration import live
from trainer_integration.desk import Admission, Desk
from trainer_integration.eval_options import EvalOptions
from trainer_integration.options import DispatchSettings
from trainer_integration.schedule import Due

logger = logging.getLogger(__name__)
STANDARD = "the trainer's rollout function"
SUITE = "eval"  # the trainer has its own data, and may grade it with functions of its own
DIED = "the driver ended while it waited for the trainer's own evaluation"


class LivePoints:
    """One training run's, one point at a time: `begin`, then `measured` or `skip`, and `leave` in any case.

    Raises, from the constructor alone, ConfigError and StoreError.
    """

    def __init__(self, options: EvalOptions, settings: Settings) -> None:
        if not options.eval_run:
            raise ConfigError("the run has no name for its points: set --eval-run, or PINPOINT_EVAL_RUN")
        EvalPoint(run=options.eval_run, step=0)
        dispatch = DispatchSettings(
            run=options.eval_run,
            suite=Suite(name=SUITE),
            every=options.eval_interval or 1,
            black_box=BlackBoxSpec(function=options.rollout_function_path or STANDARD),
            deployment=live.DEPLOYMENT,
        )
        try:
            self._desk = Desk(dispatch, settings, math.inf)
        except OSError as error:
            raise ConfigError(f"the home folder {settings.home} can't be used: {type(error).__name__}: {error}") from error
        self._admission: Admission | None = None

    def begin(self, step: int, final: bool) -> None:
        due = Due(step=step, missed=())
        self._admission = Admission(point=self._desk.point_of(due, final))
        try:
            self._desk.begin(due, final, DIED)
        except OSError as error:
            logger.error("pinpoint: a driver that is killed now loses %s: %s", self._admission.point.name, error)

    def measured(self) -> None:
        self._desk.measured()

    def skip(self, reason: SkipReason, message: str) -> dict[str, float]:
        """Gives the metrics of the skip."""
        if self._admission is None:
            raise RuntimeError("no point was begun")
        return self._desk.skip(self._admission, reason, message, 0.0).metrics

    def leave(self) -> None:
        self._admission = None
        self._desk.leave()

    def drained(self, timeout_s: float) -> bool:
        return self._desk.submitter.drained(timeout_s)

    def close(self) -> None:
        self._desk.submitter.close()

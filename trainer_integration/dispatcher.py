"""Evaluation is asked for from the training loop and never disturbs it: nothing here raises, and waits are bounded.

`on_step` decides, stages the model if the step is due, writes one small file and returns. Only staging is waited for and,
with `backpressure`, at most `backpressure_timeout_s` for room. The cap on points in flight is kept before anything is
exported; with `skip`, a due step that finds it reached is recorded as `busy` at its step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.config import Settings
from infra.errors import StoreError
from infra.model import EvalPoint, EvalReport, EvalRequest, SkippedPoint, SkipReason, SnapshotSource, Suite
from infra.records import next_attempt, now
from infra.staging import free_staged, new_staged
from infra.store import Store
from trainer_integration.contract import Exporter
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox
from trainer_integration.schedule import Due, Schedule
from trainer_integration.submit import InFlight, Submitter, last_resort_s

logger = logging.getLogger(__name__)
UNCOUNTED_ATTEMPTS = 1_000_000  # attempts above are no counts of starts: the clock makes them unique


class DispatchSettings(BaseModel):
    """When a trainer's evaluation happens, and what becomes of points that come faster than they can be measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: str = Field(description="name of the training run; the same name continues its curve")
    suite: Suite
    every: int = Field(ge=1, description="steps between points")
    start_step: int = Field(default=0, ge=0, description="the step that training begins after")
    max_in_flight: int = Field(default=2, ge=1, description="points that may be under way at once")
    overflow_policy: Literal["backpressure", "skip"] = "backpressure"
    backpressure_timeout_s: float = Field(default=600.0, gt=0, description="how long a due step waits for room")
    keep_snapshots: int = Field(default=0, ge=0, description="how many of the run's evaluated snapshots stay in the store")
    deployment: str = DEPLOYMENT
    deadline_s: float = Field(
        default=3600.0,
        gt=0,
        description="a point is `timeout` without a report so long after its flow's start or, if none ends it, "
        "2 x deadline_s + 60 s after its dispatch",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """What `on_step` did, for a trainer's own log; none of it has to be looked at. `waited_seconds` were for room."""

    point: EvalPoint
    export_time_seconds: float
    waited_seconds: float
    skipped: str | None


class EvalDispatcher:
    """One training run's way to evaluation.

    Raises (from the constructor alone, before training begins): ConfigError for settings that can't be meant, StoreError
    for a store that can't be used.
    """

    def __init__(self, dispatch: DispatchSettings, settings: Settings, export: Exporter) -> None:
        self.dispatch, self.settings, self.export = dispatch, settings, export
        EvalPoint(run=dispatch.run, step=dispatch.start_step)
        self.store = Store(settings.store, settings.s3_access())  # not by the environment: the trainer has S3 clients too
        self.store.check()
        self.attempt = next_attempt(self.store, dispatch.run)
        self.schedule = Schedule(dispatch.every, start=dispatch.start_step)
        self._skipped_at: int | None = None
        api_url = settings.prefect_api_url or "http://127.0.0.1:4200/api"
        self.submitter = Submitter(Outbox(settings.home.expanduser() / "outbox"), self.store, api_url)

    @property
    def records(self) -> list[EvalReport | SkippedPoint]:
        """The points of this process that have ended, in the order in which they did."""
        return list(self.submitter.records)

    def baseline(self) -> Dispatched | None:
        """The point before training, at the step it begins after."""
        first = Due(step=self.dispatch.start_step, missed=())
        return self._never_derailing(first, False, lambda: self._baseline(first))

    def on_step(self, step: int, *, final: bool = False) -> Dispatched | None:
        """To be called after every optimizer step; None if the step is not due. The final point is never skipped."""
        return self._never_derailing(Due(step=step, missed=()), final, lambda: self._due(step, final))

    def drain(self, deadline_s: float) -> bool:
        """Waits, after training, until every point has its record; False if some have not by then."""
        return self.submitter.drained(deadline_s)

    def close(self) -> None:
        """Ends the background thread. What is undelivered stays in the outbox for the next process."""
        self.submitter.close()

    def _never_derailing(self, due: Due, final: bool, decide: Callable[[], Due | None]) -> Dispatched | None:
        """Dispatches what `decide` says is due; until it has, `due` is what is known of the step."""
        try:
            decided = decide()
            if decided is None:
                return None
            due = decided
            return self._dispatch(due, final)
        except Exception as error:
            logger.exception("pinpoint: step %d of %s could not be dispatched", due.step, self.dispatch.run)
            message = f"{type(error).__name__}: {error}"
        try:
            return self._skip(self._point(due, final), SkipReason.CRASHED, message, 0.0, 0.0)
        except Exception:
            logger.exception("pinpoint: the skip of step %d of %s could not be recorded", due.step, self.dispatch.run)
            return None

    def _baseline(self, first: Due) -> Due:
        self.submitter.progressed(self.dispatch.run, self.attempt, first.step)
        self.schedule.mark(first.step)
        return first

    def _due(self, step: int, final: bool) -> Due | None:
        self.submitter.progressed(self.dispatch.run, self.attempt, step)
        return self.schedule.due(step, final=final)

    def _dispatch(self, due: Due, final: bool) -> Dispatched:
        if due.step == self._skipped_at:  # its record is a skip for good: the final point gets one of its own
            self.attempt = self._another_attempt()
            self.submitter.progressed(self.dispatch.run, self.attempt, due.step)
        point = self._point(due, final)
        has_room, waited = self._wait_for_room(point)
        if not has_room and not final:
            message = f"{self.submitter.in_flight} points in flight, max_in_flight is {self.dispatch.max_in_flight}"
            return self._skip(point, SkipReason.BUSY, message, 0.0, waited)
        started, folder = time.monotonic(), None
        try:
            folder = new_staged(self.settings.staging_dir, point, last_resort_s(self.dispatch.deadline_s))
            self.export(folder)
        except Exception as error:
            logger.exception("pinpoint: export of %s failed", point.name)
            if folder is not None:
                free_staged(folder)
            message = f"{type(error).__name__}: {error}"
            return self._skip(point, SkipReason.EXPORT_FAILED, message, time.monotonic() - started, waited)
        return self._submit(point, folder, time.monotonic() - started, waited)

    def _wait_for_room(self, point: EvalPoint) -> tuple[bool, float]:
        """Whether there is room for one more point, after waiting for it if that is the policy; and the seconds waited."""
        others = self.dispatch.max_in_flight - 1
        if self.submitter.wait(others, 0.0):
            return True, 0.0
        if self.dispatch.overflow_policy == "skip":
            return False, 0.0
        started = time.monotonic()
        has_room = self.submitter.wait(others, self.dispatch.backpressure_timeout_s)
        waited = time.monotonic() - started
        outcome = "and got it" if has_room else "in vain"
        logger.info("pinpoint: step %d of %s waited %.1f s for room %s", point.step, point.run, waited, outcome)
        return has_room, waited

    def _point(self, due: Due, final: bool) -> EvalPoint:
        return EvalPoint(run=self.dispatch.run, step=due.step, attempt=self.attempt, final=final, missed=due.missed)

    def _another_attempt(self) -> int:
        """A number that this run has not used; without the store it is no count of starts, but unique all the same."""
        try:
            return next_attempt(self.store, self.dispatch.run)
        except (StoreError, OSError) as error:
            logger.warning("pinpoint: %s gets an attempt that is not counted: %s", self.dispatch.run, error)
            return self.attempt + UNCOUNTED_ATTEMPTS + int(time.time())

    def _submit(self, point: EvalPoint, folder: Path, exported_s: float, waited_s: float) -> Dispatched:
        request = self._request(point, SnapshotSource(path=str(folder), staged=True), exported_s)
        try:
            self.submitter.submit(Delivery.of(request, self.dispatch.deployment), InFlight.of(request))
        except OSError:
            free_staged(folder)
            raise
        return Dispatched(point=point, export_time_seconds=exported_s, waited_seconds=waited_s, skipped=None)

    def _skip(self, point: EvalPoint, reason: SkipReason, message: str, exported_s: float, waited_s: float) -> Dispatched:
        skipped = SkippedPoint(
            point=point,
            suite=self.dispatch.suite.name,
            reason=reason.value,
            message=message,
            export_time_seconds=exported_s,
            finished_at=now(),
        )
        request = self._request(point, SnapshotSource(path="", staged=False), exported_s)
        self.schedule.reopen(point.step)
        self._skipped_at = point.step
        self.submitter.submit(Delivery.of(request, self.dispatch.deployment, skipped), None)
        return Dispatched(point=point, export_time_seconds=exported_s, waited_seconds=waited_s, skipped=reason.value)

    def _request(self, point: EvalPoint, source: SnapshotSource, exported_s: float) -> EvalRequest:
        return EvalRequest(
            point=point,
            source=source,
            suite=self.dispatch.suite,
            fleet=self.settings.fleet,
            store_url=self.settings.store,
            export_time_seconds=exported_s,
            keep_snapshots=self.dispatch.keep_snapshots,
            deadline_s=self.dispatch.deadline_s,
        )

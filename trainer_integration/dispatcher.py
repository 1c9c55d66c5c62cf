"""Evaluation is asked for from the training loop and never disturbs it: nothing here raises, and waits are bounded.

`on_step` decides, stages the model if the step is due, writes one small file and returns. Only staging is waited for and,
with `backpressure`, at most `backpressure_timeout_s` for room. The cap on points in flight is kept before anything is
exported; with `skip`, a due step that finds it reached is recorded as `busy` at its step.

In a job of many ranks every rank has a dispatcher and calls it alike: rank 0 decides and tells the others, and all export
together. A step that is not due costs no communication. Ranks that have lost each other wait no more: what is due then is
recorded as `crashed`.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.config import Settings
from infra.errors import ConfigError, PinpointError
from infra.model import EvalPoint, EvalReport, SkippedPoint, SkipReason, StagedPart
from infra.staging import SPARE, free_staged
from trainer_integration.contract import Exporter
from trainer_integration.desk import Admission, Desk, Dispatched
from trainer_integration.locations import found_checkpoint, located
from trainer_integration.metrics import metrics_of
from trainer_integration.options import DispatchSettings, longest_wait_s, refuse_unusable
from trainer_integration.schedule import Due, Schedule
from trainer_integration.sharded.ranks import Ranks

__all__ = ["DispatchSettings", "Dispatched", "EvalDispatcher"]
logger = logging.getLogger(__name__)


class EvalDispatcher:
    """One training run's way to evaluation.

    Raises (from the constructor alone, before training begins, on every rank): ConfigError for settings that can't be meant,
    StoreError for a store that can't be used.
    """

    def __init__(
        self, dispatch: DispatchSettings, settings: Settings, export: Exporter | None = None, *, ranks: Ranks | None = None
    ) -> None:
        """`ranks` are by default the exporter's, or this process alone; `export` may be missing in reuse mode."""
        refuse_unusable(dispatch, export is not None)
        EvalPoint(run=dispatch.run, step=dispatch.start_step)
        self.dispatch, self.settings, self.export = dispatch, settings, export
        self.ranks = ranks or getattr(export, "ranks", None) or Ranks.alone()
        self.schedule = Schedule(dispatch.every, start=dispatch.start_step)
        reuse = getattr(export, "reuse_memory", None)
        if dispatch.reuse_memory and reuse is not None:
            reuse(settings.staging_dir / SPARE / dispatch.run)
        self._desk: Desk | None = None
        self._reported = 0
        self._cut_off: Exception | None = None
        refusal = self.ranks.broadcast(self._opened() if self.ranks.rank == 0 else None)
        if refusal is not None:
            raise refusal

    @property
    def desk(self) -> Desk:
        """Rank 0's alone."""
        if self._desk is None:
            raise ConfigError(f"rank {self.ranks.rank} decides nothing: ask rank 0")
        return self._desk

    @property
    def records(self) -> list[EvalReport | SkippedPoint]:
        """The points of this process that have ended, in the order in which they did."""
        return list(self._desk.submitter.watch.records) if self._desk else []

    def new_metrics(self) -> list[dict[str, float]]:
        """What to log of the points that have ended since the last call, each with its own `eval/step`; never waits."""
        fresh = self.records[self._reported :]
        self._reported += len(fresh)
        return [metrics_of(record) for record in fresh]

    def resume(self, step: int) -> None:
        """Says, before `baseline`, that training goes on after `step`, for a trainer that learns it only now."""
        after = self._meant(step)
        if after is None:
            return
        if after != self.dispatch.start_step or self.schedule.begun:  # so it does not start from the baseline's checkpoint
            changes = {"start_step": after, "baseline_checkpoint": None}
            self.dispatch = self.dispatch.model_copy(update=changes)
        self.schedule = Schedule(self.dispatch.every, start=after)

    def baseline(self) -> Dispatched | None:
        """The point before training, at the step it begins after."""
        first = Due(step=self.dispatch.start_step, missed=())
        return self._never_derailing(first, False, lambda: self._baseline(first))

    def evaluate(self, step: int, checkpoint: Path | str | None = None, *, final: bool = False) -> Dispatched | None:
        """A point at `step` whatever the schedule says, for a trainer that has its own: of `checkpoint` (a folder, a cached hub
        id or an s3:// URL), which is read in place, or else as `on_step` would. A step that has a point already gets another
        attempt.
        """
        meant = self._meant(step)
        if meant is None:
            return None
        due = Due(step=meant, missed=())
        return self._never_derailing(due, final, lambda: self._asked_for(due, checkpoint))

    def on_step(self, step: int, *, final: bool = False) -> Dispatched | None:
        """To be called after every optimizer step; None if the step is not due, and on all ranks but the first.

        The final point is never `busy`.
        """
        meant = self._meant(step)
        if meant is None:
            return None
        return self._never_derailing(Due(step=meant, missed=()), final, lambda: self._due(meant, final))

    async def on_step_async(self, step: int, *, final: bool = False) -> Dispatched | None:
        """The same for a trainer on an event loop, which goes on meanwhile; the model must not change until it returns."""
        return await asyncio.to_thread(self.on_step, step, final=final)

    def saved_at(self, step: int) -> Path | str | None:
        """Where the model of `step` is read, a folder or an s3:// URL; None if it is exported.

        A first or last step need not be one that is saved.
        """
        interval = self.dispatch.save_interval
        if self.export is not None and interval and (step % interval or step == 0):
            return None
        return self.dispatch.saved_at(step)

    def drain(self, deadline_s: float) -> bool:
        """Waits, after training, until every point has its record; False if some have not by then. Rank 0 alone waits."""
        return self._desk.submitter.drained(deadline_s) if self._desk else True

    def close(self) -> None:
        """Ends the background thread. What is undelivered stays in the outbox for the next process."""
        if self._desk:
            self._desk.submitter.close()

    def _baseline(self, first: Due) -> tuple[Due, Path | str | None]:
        self._progressed(first.step)
        self.schedule.mark(first.step)
        return first, self.dispatch.baseline_checkpoint or self.saved_at(first.step)

    def _asked_for(self, due: Due, checkpoint: Path | str | None) -> tuple[Due, Path | str | None]:
        self._progressed(due.step)
        self.schedule.mark(due.step)
        return due, _as_far_as_found(checkpoint) if checkpoint else self.saved_at(due.step)

    def _due(self, step: int, final: bool) -> tuple[Due, Path | str | None] | None:
        self._progressed(step)
        due = self.schedule.due(step, final=final)
        return None if due is None else (due, self.saved_at(due.step))

    def _progressed(self, step: int) -> None:
        if self._desk:
            self._desk.progressed(step)

    def _never_derailing(
        self, due: Due, final: bool, decide: Callable[[], tuple[Due, Path | str | None] | None]
    ) -> Dispatched | None:
        """Dispatches what `decide`, which every rank answers alike, says is due; until then `due` is all that is known."""
        try:
            decided = decide()
            if decided is None:
                return None
            due, saved = decided
            if self._cut_off is not None:
                return self._crashed(due, final, self._cut_off)
            return self._dispatched(due, final, saved)
        except Exception as error:
            logger.exception("pinpoint: step %d of %s could not be dispatched", due.step, self.dispatch.run)
            if self.ranks.count == 1:  # others may not know of it
                self.schedule.reopen(due.step)
            return self._crashed(due, final, error)
        finally:
            if self._desk:
                self._desk.leave()

    def _dispatched(self, due: Due, final: bool, saved: Path | str | None) -> Dispatched | None:
        own = self._admission(due, final, saved)
        admission = self._told(own)
        if self._cut_off is not None:
            if own is not None and own.folder is not None:
                free_staged(own.folder)
            return self._crashed(due, final, self._cut_off)
        if admission is None:
            self.schedule.reopen(due.step)
            return self._crashed(due, final, PinpointError("rank 0 could decide nothing: see its log"))
        done = self._carry_out(admission)
        if self._told(done is None or done.skipped is not None):
            self.schedule.reopen(due.step)
            if admission.folder is not None and self._cut_off is None:  # rank 0 may have submitted it otherwise
                free_staged(admission.folder)
        return done

    def _told(self, value: Any) -> Any:
        """Rank 0's `value`, on every rank; this rank's own if the ranks have lost each other, who never wait again then."""
        try:
            return self.ranks.broadcast(value) if self._cut_off is None else value
        except Exception as error:
            logger.exception("pinpoint: the ranks of %s have lost each other: nothing more is evaluated", self.dispatch.run)
            self._cut_off = error
            return value

    def _opened(self) -> PinpointError | None:
        """Rank 0's, whatever happens: the others wait for it. Opens the desk, or gives what is against it."""
        try:
            if (given := self.dispatch.baseline_checkpoint) is not None:  # as this rank finds it: the others may lack it
                self.dispatch = self.dispatch.model_copy(update={"baseline_checkpoint": str(found_checkpoint(given))})
            self._desk = Desk(self.dispatch, self.settings, longest_wait_s(self.ranks))
        except PinpointError as error:
            return error
        except Exception as error:
            logger.debug("pinpoint: no desk", exc_info=True)
            return ConfigError(f"the home folder {self.settings.home} can't be used: {type(error).__name__}: {error}")
        return None

    def _meant(self, step: Any) -> int | None:
        """The number that `step` is, numpy's for one. None, with a line in the log, if it is no step: alike on every rank."""
        try:
            return EvalPoint(run=self.dispatch.run, step=int(operator.index(step))).step
        except Exception:
            logger.exception("pinpoint: %r is no step of %s, and is not evaluated", step, self.dispatch.run)
            return None

    def _admission(self, due: Due, final: bool, saved: Path | str | None) -> Admission | None:
        """Rank 0's, whatever happens: the others wait for it. None, which they learn too, if it could decide nothing."""
        if self._desk is None:
            return None
        try:
            try:
                return self._desk.admit(due, final, saved)
            except Exception as error:
                logger.exception("pinpoint: step %d of %s could not be dispatched", due.step, self.dispatch.run)
                message = f"{type(error).__name__}: {error}"
                return Admission(point=self._desk.point_of(due, final), skipped=SkipReason.CRASHED, message=message)
        except Exception:
            logger.exception("pinpoint: nothing could be decided of step %d of %s", due.step, self.dispatch.run)
            return None

    def _carry_out(self, admission: Admission) -> Dispatched | None:
        """None on all ranks but the first, and if not even a skip could be made."""
        reason, message, started = admission.skipped, admission.message, time.monotonic()
        parts: tuple[StagedPart, ...] = ()
        try:
            if admission.folder is not None:
                try:
                    parts = self._staged(admission.folder)
                except Exception as error:
                    logger.exception("pinpoint: export of %s failed", admission.point.name)
                    reason, message = SkipReason.EXPORT_FAILED, f"{type(error).__name__}: {error}"
                    free_staged(admission.folder)
            seconds = time.monotonic() - started if admission.folder is not None else 0.0
            if self._desk is None:
                return None
            if reason is None:
                return self._desk.submit(admission, parts, seconds)
            return self._desk.skip(admission, reason, message, seconds)
        except Exception as error:
            logger.exception("pinpoint: %s could not be submitted", admission.point.name)
            due = Due(step=admission.point.step, missed=admission.point.missed)
            return self._crashed(due, admission.point.final, error)

    def _staged(self, folder: Path) -> tuple[StagedPart, ...]:
        """Fails on all ranks if it does on any."""
        if self.export is None:
            raise ConfigError("there is no exporter to stage the live model with")
        export = self.export
        self.ranks.together(lambda: export(folder))
        staged = getattr(export, "parts", None)
        found = staged.parts if staged is not None else ()
        return tuple(StagedPart(host=part.host, path=str(part.folder), shards=part.shards) for part in found)

    def _crashed(self, due: Due, final: bool, error: Exception) -> Dispatched | None:
        """A bug of ours is a skipped point, too, if that much still works."""
        if self._desk is None:
            return None
        try:
            admission = Admission(point=self._desk.point_of(due, final))
            return self._desk.skip(admission, SkipReason.CRASHED, f"{type(error).__name__}: {error}", 0.0)
        except Exception:
            logger.exception("pinpoint: the skip of step %d of %s could not be recorded", due.step, self.dispatch.run)
            return None


def _as_far_as_found(checkpoint: Path | str) -> Path | str:
    """Training goes on from a checkpoint that nobody finds: its point is `ckpt_missing`."""
    if isinstance(checkpoint, Path):
        return checkpoint.absolute()
    try:
        return found_checkpoint(checkpoint)
    except ConfigError as error:
        logger.warning("pinpoint: %s", error)
        return located(checkpoint)

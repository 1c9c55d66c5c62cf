"""What one rank decides for all: whether a due step is admitted, which attempt it is, and what is asked of Prefect.

A step that is not admitted is recorded as skipped at its step, before anything is exported for it. From the moment it is due
until its delivery has its file, an intent says what is to be recorded if the trainer dies.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.config import Settings
from infra.model import EvalPoint, EvalRequest, FleetSpec, SkippedPoint, SkipReason, SnapshotSource, StagedPart
from infra.records import next_attempt, now
from infra.staging import free_staged, new_staged
from infra.store import Store
from trainer_integration.attempts import another_attempt, origin_of
from trainer_integration.in_flight import InFlight, last_resort_s
from trainer_integration.intents import Intent, soon_intended
from trainer_integration.options import DispatchSettings
from trainer_integration.outbox import Delivery, Outbox
from trainer_integration.schedule import Due
from trainer_integration.submit import Submitter

logger = logging.getLogger(__name__)
DIED = "the trainer ended before it had dispatched the point: while it waited for room, or exported the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """What `on_step` did, for a trainer's own log; none of it has to be looked at. `waited_seconds` were for room."""

    point: EvalPoint
    export_time_seconds: float
    waited_seconds: float
    skipped: str | None

    @property
    def metrics(self) -> dict[str, float]:
        """To be logged as they are; what the point measured comes later, by `EvalDispatcher.new_metrics`."""
        found = {
            "eval/step": float(self.point.step),
            "eval/export_time_seconds": self.export_time_seconds,
            "eval/wait_seconds": self.waited_seconds,
        }
        return found | ({f"eval/skipped_{self.skipped}": 1.0} if self.skipped else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What all ranks do for a due step: stage into `folder`, nothing if the weights lie at `saved`, or skip it."""

    point: EvalPoint
    waited_s: float = 0.0
    folder: Path | None = None
    saved: Path | str | None = None
    skipped: SkipReason | None = None
    message: str = ""


class Desk:
    """Of rank 0; see EvalDispatcher for what its constructor raises, besides OSError for a home that can't be used."""

    def __init__(self, dispatch: DispatchSettings, settings: Settings, longest_wait_s: float) -> None:
        """`longest_wait_s` is how long the other ranks, which wait too, can be kept waiting for room."""
        self.dispatch, self.settings = dispatch, settings
        self.wait_s = min(dispatch.backpressure_timeout_s, longest_wait_s)
        if self.wait_s < dispatch.backpressure_timeout_s:
            logger.warning(
                "pinpoint: a due step of %s waits %g s for room: other ranks give up soon", dispatch.run, self.wait_s
            )
        self.store = Store(settings.store, settings.s3_access())  # not by the environment: the trainer has S3 clients too
        self.store.check()
        self.attempt = next_attempt(self.store, dispatch.run)
        self._origin = origin_of(self.store, dispatch.run)
        self._dispatched: set[int] = set()
        self._point: EvalPoint | None = None
        self._intent: Intent | None = None
        api_url = settings.prefect_api_url or "http://127.0.0.1:4200/api"
        self.submitter = Submitter(Outbox(settings.home.expanduser() / "outbox"), self.store, api_url)

    def progressed(self, step: int) -> None:
        self.submitter.progressed(self.dispatch.run, self.attempt, step)

    def admit(self, due: Due, final: bool, saved: Path | str | None) -> Admission:
        """Waits for room if that is the policy. On a `saved` checkpoint the point is measured instead of the live model."""
        point = self.begin(due, final)
        has_room, waited = self._wait_for_room(point)
        if not has_room and not final:
            message = f"{self.submitter.watch.in_flight} points in flight, max_in_flight is {self.dispatch.max_in_flight}"
            return Admission(point=point, waited_s=waited, skipped=SkipReason.BUSY, message=message)
        if saved is not None:
            return Admission(point=point, waited_s=waited, saved=saved)
        try:
            folder = new_staged(self.settings.staging_dir, point, last_resort_s(self.dispatch.deadline_s))
        except OSError as error:
            message = f"{type(error).__name__}: {error}"
            return Admission(point=point, waited_s=waited, skipped=SkipReason.EXPORT_FAILED, message=message)
        if self._intent is not None:
            self._intent.stages(folder)
        return Admission(point=point, waited_s=waited, folder=folder)

    def begin(self, due: Due, final: bool, died: str = DIED) -> EvalPoint:
        """From here on the point is recorded as `crashed`, as `died` says, if the trainer dies. Raises OSError."""
        point = self.point_of(due, final)
        skip = self._skip_of(point, SkipReason.CRASHED, died, 0.0)
        self._intent = soon_intended(self.submitter.outbox, self.submitter.owned(skip))
        self._dispatched.add(due.step)
        return point

    def measured(self) -> None:
        """The point that was begun was measured by the trainer itself: nothing is recorded of it here."""
        intent, self._intent = self._intent, None
        if intent is not None:
            intent.fulfilled()

    def point_of(self, due: Due, final: bool) -> EvalPoint:
        """The same until `leave`."""
        if self._point is None:
            if due.step in self._dispatched:  # its record is for good, a skip for one: the next point is another attempt
                self.attempt = another_attempt(self.store, self.dispatch.run, self.attempt)
                self._dispatched.clear()
                self.progressed(due.step)
            self._point = EvalPoint(run=self.dispatch.run, step=due.step, attempt=self.attempt, final=final, missed=due.missed)
        return self._point

    def submit(self, admission: Admission, parts: tuple[StagedPart, ...], exported_s: float) -> Dispatched:
        """Raises what went wrong, OSError if it can't be written; what was staged here is then freed."""
        try:
            request = self._request(admission.point, self._source(admission, parts), exported_s)
            self._put(request, admission, exported_s)
        except Exception:
            if admission.folder is not None:
                free_staged(admission.folder)
            raise
        return self._done(admission, exported_s, None)

    def _source(self, admission: Admission, parts: tuple[StagedPart, ...]) -> SnapshotSource:
        staged, path = admission.folder is not None, str(admission.folder or admission.saved)
        if staged and not parts:
            parts = (StagedPart(host=socket.gethostname(), path=path),)
        return SnapshotSource(path=path, staged=staged, parts=parts)

    def skip(self, admission: Admission, reason: SkipReason, message: str, exported_s: float) -> Dispatched:
        """One that can't be written is kept in memory, and ends in the store all the same as long as this process lives."""
        self._dispatched.add(admission.point.step)
        intent, self._intent = self._intent, None  # the submitter's from here on
        self.submitter.skip(self._skip_of(admission.point, reason, message, exported_s), intent)
        return self._done(admission, exported_s, reason.value)

    def leave(self) -> None:
        """To be called after each dispatch: one that came to nothing leaves its intent to the background thread."""
        if self._intent is not None:
            self._intent.given_up()
        self._intent = self._point = None

    def _put(self, request: EvalRequest, admission: Admission, exported_s: float) -> None:
        intent, delivery = self._intent, self._delivery(request)
        late = partial(self._written_late, admission, exported_s, intent)
        in_time = self.submitter.submit(delivery, InFlight.of(request), intent.stem if intent else None, late)
        self._intent = None
        if in_time and intent is not None:
            intent.fulfilled()

    def _written_late(self, admission: Admission, exported_s: float, intent: Intent | None, error: Exception | None) -> None:
        """By a thread, of a point that training did not wait for: it has its delivery, or becomes a skipped point now."""
        if error is not None:
            if admission.folder is not None:
                free_staged(admission.folder)
            message = f"{type(error).__name__}: {error}"
            self.submitter.skip(self._skip_of(admission.point, SkipReason.CRASHED, message, exported_s), intent)
        elif intent is not None:
            intent.fulfilled()

    def _skip_of(self, point: EvalPoint, reason: SkipReason, message: str, exported_s: float) -> Delivery:
        skipped = SkippedPoint(
            point=point,
            suite=self.dispatch.suite.name,
            reason=reason.value,
            message=message,
            export_time_seconds=exported_s,
            finished_at=now(),
        )
        request = self._request(point, SnapshotSource(path="", staged=False), exported_s)
        return self._delivery(request, skipped)

    def _delivery(self, request: EvalRequest, skip: SkippedPoint | None = None) -> Delivery:
        return Delivery.of(request, self.dispatch.deployment, skip, self._origin)

    def _done(self, admission: Admission, exported_s: float, skipped: str | None) -> Dispatched:
        return Dispatched(
            point=admission.point, export_time_seconds=exported_s, waited_seconds=admission.waited_s, skipped=skipped
        )

    def _wait_for_room(self, point: EvalPoint) -> tuple[bool, float]:
        """Whether there is room for one more point, after waiting for it if that is the policy; and the seconds waited."""
        others = self.dispatch.max_in_flight - 1
        if self.submitter.watch.wait(others, 0.0):
            return True, 0.0
        if self.dispatch.overflow_policy == "skip":
            return False, 0.0
        started = time.monotonic()
        has_room = self.submitter.watch.wait(others, self.wait_s)
        waited = time.monotonic() - started
        outcome = "and got it" if has_room else "in vain"
        logger.info("pinpoint: step %d of %s waited %.1f s for room %s", point.step, point.run, waited, outcome)
        return has_room, waited

    def _request(self, point: EvalPoint, source: SnapshotSource, exported_s: float) -> EvalRequest:
        return EvalRequest(
            point=point,
            source=source,
            suite=self.dispatch.suite,
            fleet=FleetSpec() if self.dispatch.black_box else self.settings.fleet,  # a black box brings its own engines
            black_box=self.dispatch.black_box,
            store_url=self.settings.store,
            export_time_seconds=exported_s,
            trust_remote_code=self.dispatch.trust_remote_code,
            keep_snapshots=self.dispatch.keep_snapshots,
            deadline_s=self.dispatch.deadline_s,
        )

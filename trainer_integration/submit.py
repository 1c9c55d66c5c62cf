"""Delivers what the outbox holds and watches over what was delivered, in a thread that training never waits for.

Prefect up, slow, hung, down or restarting: the thread tries again with a growing pause. Each delivery fails for itself: one
that nobody will ever take holds up no other. Every delivered point, also one that an earlier process left, ends with a
record in the store, if need be one that this thread writes because the flow run ended without one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import httpx
from pydantic import ValidationError

from infra.alarms import alarm_of
from infra.errors import ConfigError, PinpointError, StoreUnreachable
from infra.model import EvalPoint, EvalReport, EvalRequest, SkippedPoint, SkipReason
from infra.records import commit, find, now, write_progress
from infra.retention import retire_snapshots
from infra.staging import free_staged
from infra.store import Store
from trainer_integration.backoff import Backoff
from trainer_integration.bounded import within
from trainer_integration.intents import Intent, settle_left
from trainer_integration.outbox import Delivery, Outbox
from trainer_integration.owners import Owner
from trainer_integration.prefect_api import TERMINAL, PrefectApi, PrefectRefused

logger = logging.getLogger(__name__)
TICK_S = 0.25
POLL_S = 1.0
RECORD_GRACE_S = 30.0  # between a flow run's end and its record being seen, or a crashed one beginning again
QUEUE_GRACE_S = 60.0
PREFECT, DEPLOYMENT, STORE = "Prefect", "deployment", "store"  # what duties need, with a name after the last two


def last_resort_s(deadline_s: float) -> float:
    """Seconds after its dispatch at which the trainer gives a point up that has no record.

    The flow keeps `deadline_s` itself, from its own start. This is for a flow that can't: one that never started, or was
    lost. One that waits in the queue for at most `deadline_s` + 60 s ends by itself before.
    """
    return 2 * deadline_s + QUEUE_GRACE_S


@dataclass(slots=True)
class InFlight:
    """A point that was dispatched and has no record yet; `deadline` is `last_resort_s` on the monotonic clock."""

    point: EvalPoint
    suite: str
    staged: Path | None
    store_url: str
    export_time_seconds: float
    keep_snapshots: int
    deadline: float
    flow_run_id: str | None = None
    refused: str = ""
    ended_at: float | None = None
    state: str = ""

    @classmethod
    def of(cls, request: EvalRequest) -> Self:
        return cls(
            point=request.point,
            suite=request.suite.name,
            staged=Path(request.source.path) if request.source.staged else None,
            store_url=request.store_url,
            export_time_seconds=request.export_time_seconds,
            keep_snapshots=request.keep_snapshots,
            deadline=time.monotonic() + last_resort_s(request.deadline_s),
        )


class Submitter:
    """Owns the thread. `records` and `in_flight` are of what was submitted here, not of what others left in the outbox."""

    def __init__(self, outbox: Outbox, store: Store, api_url: str) -> None:
        self.outbox, self.store = outbox, store
        self.owner = Owner(outbox.folder.parent)
        outbox.files.prepare()
        self.api = PrefectApi(api_url)
        self.records: list[EvalReport | SkippedPoint] = []
        self.changed = threading.Condition()
        self._own: set[str] = set()
        self._put: list[Path] = []
        self._kept: list[tuple[Delivery, Intent | None]] = []
        self._writing = 0
        self._in_flight: dict[str, InFlight] = {}
        self._left: dict[str, InFlight] = {}
        self._committed: set[str] = set()
        self._progress: dict[tuple[str, int], int] = {}
        self._published: dict[tuple[str, int], int] = {}
        self._stores = {store.url: store}
        self._stopping = threading.Event()
        self._backoff, self._next_poll = Backoff(), 0.0
        self._thread = threading.Thread(target=self._run, name="pinpoint-submit", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submit(
        self,
        delivery: Delivery,
        watched: InFlight | None,
        stem: str | None = None,
        late: Callable[[Exception | None], None] | None = None,
    ) -> bool:
        """Outlives this process when it returns, as `stem`; all else happens later. Raises OSError if it can't be written.

        With `late`, a file system that is not local is waited for a moment at most. Then it gives False, and `late` is called,
        by a thread, when it is written, or with the error if it can't be.
        """
        key = delivery.idempotency_key
        with self.changed:
            self._own.add(key)
            self._writing += 1
            if watched is not None:
                self._in_flight[key] = watched
        put = partial(self.outbox.put, self.owned(delivery), stem)
        try:
            file = put() if late is None else within(self.outbox.wait_s, put, partial(self._written_late, delivery, late))
        except Exception as error:
            self._written(key, error)
            raise
        if file is None:
            logger.warning("pinpoint: %s takes long to be written to %s: training goes on", delivery.name, self.outbox.folder)
            return False
        self._written(key, file)
        return True

    def _written(self, key: str, outcome: Path | Exception) -> None:
        with self.changed:
            self._writing -= 1
            if isinstance(outcome, Path):
                self._put.append(outcome)
            else:
                self._own.discard(key)
                self._in_flight.pop(key, None)

    def _written_late(self, delivery: Delivery, late: Callable[[Exception | None], None], outcome: Path | Exception) -> None:
        if isinstance(outcome, Exception):
            logger.error("pinpoint: %s could not be written: %s", delivery.name, outcome)
        late(outcome if isinstance(outcome, Exception) else None)  # first, so that who drains waits for what follows
        self._written(delivery.idempotency_key if isinstance(outcome, Path) else "", outcome)

    def owned(self, delivery: Delivery) -> Delivery:
        """For this Prefect, and from here as long as this process lives."""
        return delivery.model_copy(update={"api_url": self.api.url, "owner": self.owner.name})

    def skip(self, delivery: Delivery, intent: Intent | None) -> None:
        """As `submit`, of a delivery with a skip, which is kept in memory if it can't be written; `intent` is ended here.

        What is kept gets its record and its flow run by the thread, without a file, as long as this process lives.
        """
        ended = partial(self._skip_written, delivery, intent)
        try:
            if self.submit(delivery, None, intent.stem if intent else None, ended):
                ended(None)
        except OSError as error:
            ended(error)

    def _skip_written(self, delivery: Delivery, intent: Intent | None, error: Exception | None) -> None:
        if error is not None:
            logger.error("pinpoint: the skip of %s is kept in memory, for it can't be written: %s", delivery.name, error)
            with self.changed:
                self._own.add(delivery.idempotency_key)
                self._kept.append((delivery, intent))
        elif intent is not None:
            intent.fulfilled()

    def progressed(self, run: str, attempt: int, step: int) -> None:
        self._progress[run, attempt] = step

    def wait(self, until: int, timeout_s: float) -> bool:
        """Waits until at most `until` points are in flight; says whether that came true."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self._in_flight) <= until, timeout_s)

    def drained(self, timeout_s: float) -> bool:
        """Waits until all that was submitted here is delivered and has its record; says whether that came true."""
        deadline = time.monotonic() + timeout_s
        while self.wait(0, max(0.0, deadline - time.monotonic())):
            with self.changed:
                self._put = [file for file in self._put if file.exists()]
            if not (self._put or self._kept or self._writing):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(TICK_S)
        return False

    def close(self, timeout_s: float = 5.0) -> None:
        self._stopping.set()
        self._thread.join(timeout_s)
        self.outbox.files.close(timeout_s)
        self.owner.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._attempt(self._tick, "the outbox")
            self._stopping.wait(TICK_S)
        self._attempt(self._publish_progress, "the last progress")
        self.api.close()

    def _tick(self) -> None:
        """Tries each duty though another one fails: a point ends by its deadline also while Prefect is away."""
        for kept in list(self._kept):
            self._carry_on(*kept)
        pending = [found for found in self.outbox.pending() if self.outbox.is_for(found[1], self.api.url)]
        for file, delivery in pending:  # the record of a skip does not wait for Prefect, nor behind a delivery that does
            if delivery.skip is not None and delivery.idempotency_key not in self._committed:
                need = f"{STORE} {delivery.store_url}"
                self._attempt(partial(self._commit_skip, delivery, delivery.skip), f"record of {file.name}", need)
        for file, delivery in pending:
            if delivery.skip is None or delivery.idempotency_key in self._committed:
                needs = PREFECT, f"{DEPLOYMENT} {delivery.deployment}"
                self._attempt(partial(self._deliver, file, delivery), f"delivery of {file.name}", *needs)
        if time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + POLL_S
            self._attempt(partial(settle_left, self.outbox), "what dead trainers left")
            self._attempt(self._publish_progress, "progress", f"{STORE} {self.store.url}")
            for key, flight in [*self._in_flight.items(), *self._left.items()]:
                self._attempt(partial(self._settle, key, flight), f"record of {key}", f"{STORE} {flight.store_url}")
                self._attempt(partial(self._ask, flight), f"state of {key}", PREFECT)

    def _attempt(self, duty: Callable[[], object], name: str, *needs: str) -> None:
        """Does `duty`, unless it or something it needs has just failed; a failure makes only what is at fault wait."""
        if self._backoff.waits(name, *needs):
            return
        try:
            duty()
        except (PinpointError, OSError, httpx.HTTPError) as error:
            pause, cause = self._backoff.failed(_at_fault(error, name, needs)), f"{type(error).__name__}: {error}"
            logger.warning("pinpoint: %s will be tried again in %.1f s: %s", name, pause, cause.splitlines()[0])
        except Exception:
            logger.exception("pinpoint: %s will be tried again in %.1f s", name, self._backoff.failed(name))
        else:
            self._backoff.succeeded(name, *needs)

    def _carry_on(self, delivery: Delivery, intent: Intent | None) -> None:
        """Of a skip that has no file: its record first, then its flow run."""
        key, name = delivery.idempotency_key, delivery.name
        if delivery.skip is not None and key not in self._committed:
            duty = partial(self._commit_skip, delivery, delivery.skip)
            self._attempt(duty, f"record of {name}", f"{STORE} {delivery.store_url}")
        if key in self._committed:
            needs = PREFECT, f"{DEPLOYMENT} {delivery.deployment}"
            self._attempt(partial(self._deliver_kept, delivery, intent), f"delivery of {name}", *needs)

    def _deliver_kept(self, delivery: Delivery, intent: Intent | None) -> None:
        try:
            self.api.create_flow_run(self._marked(delivery))
        except PrefectRefused as error:
            logger.error("pinpoint: %s can't be submitted: %s", delivery.name, error)
        self._kept.remove((delivery, intent))
        self._committed.discard(delivery.idempotency_key)
        if intent is not None:
            intent.fulfilled()

    def _commit_skip(self, delivery: Delivery, skip: SkippedPoint) -> None:
        self._record(delivery.idempotency_key, commit(self._store(delivery.store_url), skip))
        self._committed.add(delivery.idempotency_key)

    def _deliver(self, file: Path, delivery: Delivery) -> None:
        flight = self._watched(delivery)
        try:
            run_id = self.api.create_flow_run(self._marked(delivery))
        except PrefectRefused as error:
            logger.error("pinpoint: %s can't be submitted: %s", delivery.name, error)
            with suppress(FileNotFoundError):  # another process on this machine may have been refused, too
                file.rename(file.with_suffix(".refused"))
            if flight is not None:
                flight.refused = str(error)
            return
        self.outbox.remove(file)
        self._committed.discard(delivery.idempotency_key)
        if flight is not None:
            flight.flow_run_id = run_id
        logger.info("pinpoint: %s submitted as flow run %s", delivery.name, run_id)

    def _marked(self, delivery: Delivery) -> Delivery:
        if delivery.skip is None:
            return delivery
        alarm = alarm_of(self._store(delivery.store_url), delivery.skip)
        return delivery.model_copy(update={"tags": (*delivery.tags, alarm.tag)}) if alarm else delivery

    def _watched(self, delivery: Delivery) -> InFlight | None:
        """What waits for the delivery's record. One that an earlier process left is watched from when it is first seen."""
        key = delivery.idempotency_key
        if delivery.skip is None and key not in self._own and key not in self._left:
            try:
                self._left[key] = InFlight.of(EvalRequest.model_validate(delivery.parameters["request"]))
            except (ValidationError, ConfigError, KeyError) as error:
                logger.warning("pinpoint: %s can't be watched, its request is not one of this version: %s", key, error)
        return self._in_flight.get(key) or self._left.get(key)

    def _settle(self, key: str, flight: InFlight) -> None:
        record = find(self._store(flight.store_url), flight.point, flight.suite)
        if record is not None:
            self._record(key, record)
        elif flight.refused:
            self._end(key, flight, f"Prefect refused the flow run: {flight.refused}")
        elif flight.ended_at is not None and time.monotonic() - flight.ended_at > RECORD_GRACE_S:
            self._end(key, flight, f"flow run {flight.flow_run_id} ended as {flight.state} without a report")
        elif time.monotonic() > flight.deadline:
            self._end(key, flight, "no report within the point's deadline", SkipReason.TIMEOUT)

    def _ask(self, flight: InFlight) -> None:
        """Also of one that has ended: after a crash it may begin again."""
        if flight.flow_run_id is not None:
            kind, flight.state = self.api.state_of(flight.flow_run_id)
            flight.ended_at = (flight.ended_at or time.monotonic()) if kind in TERMINAL else None

    def _end(self, key: str, flight: InFlight, message: str, reason: SkipReason = SkipReason.CRASHED) -> None:
        """Gives a point that nobody else will finish its record, and frees what was exported for it."""
        store = self._store(flight.store_url)
        skipped = SkippedPoint(
            point=flight.point,
            suite=flight.suite,
            reason=reason.value,
            message=message,
            export_time_seconds=flight.export_time_seconds,
            finished_at=now(),
        )
        record = commit(store, skipped)
        if flight.staged is not None:
            free_staged(flight.staged)
            retire_snapshots(store, flight.point, flight.keep_snapshots)
        self._record(key, record)

    def _record(self, key: str, record: EvalReport | SkippedPoint) -> None:
        with self.changed:
            self._in_flight.pop(key, None)
            self._left.pop(key, None)
            if key in self._own:
                self.records.append(record)
            self.changed.notify_all()

    def _store(self, url: str) -> Store:
        """Raises ConfigError for a store that can't be opened here."""
        if url.rstrip("/") not in self._stores:
            self._stores[url.rstrip("/")] = Store(url)
        return self._stores[url.rstrip("/")]

    def _publish_progress(self) -> None:
        for (run, attempt), step in list(self._progress.items()):
            if self._published.get((run, attempt)) != step:
                write_progress(self.store, run, attempt, step)
                self._published[run, attempt] = step


def _at_fault(error: Exception, name: str, needs: Sequence[str]) -> str:
    """Which of a duty's `needs` failed, so that all who need it wait; else the duty `name` alone."""
    kind = name
    if isinstance(error, StoreUnreachable):
        kind = STORE
    elif isinstance(error, httpx.TransportError):
        kind = PREFECT
    elif isinstance(error, httpx.HTTPStatusError):
        kind = {404: DEPLOYMENT, 502: PREFECT, 503: PREFECT, 504: PREFECT}.get(error.response.status_code, name)
    return next((need for need in needs if need.startswith(kind)), name)

"""Delivers what the outbox holds and watches over what was delivered, in a thread that training never waits for.

Prefect up, slow, hung, down or restarting: the thread tries again with a growing pause. Every delivered point ends with a
record in the store, if need be one that this thread writes because the flow run ended without one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import httpx

from infra.errors import StoreError
from infra.leases import delete_owned
from infra.model import EvalPoint, EvalReport, EvalRequest, SkippedPoint, SkipReason
from infra.records import commit, find, now, write_progress
from infra.staging import free_staged
from infra.store import Store
from trainer_integration.outbox import Delivery, Outbox
from trainer_integration.prefect_api import TERMINAL, PrefectApi, PrefectRefused

logger = logging.getLogger(__name__)
TICK_S = 0.25
POLL_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
RECORD_GRACE_S = 10.0  # between a flow run's end and its record being seen


@dataclass(slots=True)
class InFlight:
    """A point that was dispatched and has no record yet."""

    point: EvalPoint
    suite: str
    staged: Path | None
    deadline: float
    flow_run_id: str | None = None
    ended_at: float | None = None
    state: str = ""

    @classmethod
    def of(cls, request: EvalRequest) -> Self:
        return cls(
            point=request.point,
            suite=request.suite.name,
            staged=Path(request.source.path) if request.source.staged else None,
            deadline=time.monotonic() + request.deadline_s,
        )


class Submitter:
    """Owns the thread. `done` is called in it with each point's record."""

    def __init__(self, outbox: Outbox, store: Store, api_url: str) -> None:
        self.outbox, self.store = outbox, store
        self.api = PrefectApi(api_url)
        self.records: list[EvalReport | SkippedPoint] = []
        self.changed = threading.Condition()
        self._in_flight: dict[str, InFlight] = {}
        self._committed: set[str] = set()
        self._progress: tuple[str, int] | None = None
        self._published: tuple[str, int] | None = None
        self._stopping = threading.Event()
        self._pause_s, self._not_before, self._next_poll = FIRST_PAUSE_S, 0.0, 0.0
        self._thread = threading.Thread(target=self._run, name="pinpoint-submit", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submit(self, delivery: Delivery, watched: InFlight | None) -> None:
        """Durable when it returns; everything else happens later, in the thread. Raises OSError if it can't be made so."""
        if watched is not None:
            with self.changed:
                self._in_flight[delivery.idempotency_key] = watched
        try:
            self.outbox.put(delivery)
        except OSError:
            with self.changed:
                self._in_flight.pop(delivery.idempotency_key, None)
            raise

    def progressed(self, run: str, step: int) -> None:
        self._progress = (run, step)

    def wait(self, until: int, timeout_s: float) -> bool:
        """Waits until at most `until` points are in flight; says whether that came true."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self._in_flight) <= until, timeout_s)

    def drained(self, timeout_s: float) -> bool:
        """Waits until nothing is in flight and the outbox is empty; says whether that came true."""
        deadline = time.monotonic() + timeout_s
        while self.wait(0, max(0.0, deadline - time.monotonic())) and len(self.outbox):
            if time.monotonic() >= deadline:
                return False
            time.sleep(TICK_S)
        return not self._in_flight

    def close(self, timeout_s: float = 5.0) -> None:
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tick()
            except Exception:
                logger.exception("pinpoint: submission thread")
                self._backoff()
            self._stopping.wait(TICK_S)
        self._done(self._publish_progress)
        self.api.close()

    def _tick(self) -> None:
        """Tries each duty though another one fails: a point ends by its deadline also while Prefect is away."""
        if time.monotonic() < self._not_before:
            return
        duties: list[Callable[[], None]] = [self._commit_skips, self._deliver_all]
        if time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + POLL_S
            duties.append(self._publish_progress)
            duties += [partial(self._look_after, key, flight) for key, flight in list(self._in_flight.items())]
        outcomes = [self._done(duty) for duty in duties]
        if all(outcomes):
            self._pause_s = FIRST_PAUSE_S
        else:
            self._backoff()

    def _done(self, duty: Callable[[], None]) -> bool:
        try:
            duty()
        except (httpx.HTTPError, StoreError) as error:
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            logger.warning("pinpoint: will try again in %.1f s: %s", self._pause_s, cause)
            return False
        return True

    def _backoff(self) -> None:
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _commit_skips(self) -> None:
        """The record of a skip does not wait for Prefect, nor behind a delivery that does."""
        for _, delivery in self.outbox.pending():
            self._commit_skip(delivery)

    def _commit_skip(self, delivery: Delivery) -> None:
        key = delivery.idempotency_key
        if delivery.skip is not None and key not in self._committed:
            self._record(key, commit(Store(delivery.store_url), delivery.skip))
            self._committed.add(key)

    def _deliver_all(self) -> None:
        for file, delivery in self.outbox.pending():
            self._deliver(file, delivery)

    def _deliver(self, file: Path, delivery: Delivery) -> None:
        self._commit_skip(delivery)
        try:
            run_id = self.api.create_flow_run(delivery)
        except PrefectRefused as error:
            logger.error("pinpoint: %s can't be submitted: %s", delivery.name, error)
            file.rename(file.with_suffix(".refused"))
            self._end(delivery.idempotency_key, f"Prefect refused the flow run: {error}")
            return
        file.unlink(missing_ok=True)  # another process on this machine may have delivered it too
        flight = self._in_flight.get(delivery.idempotency_key)
        if flight is not None:
            flight.flow_run_id = run_id
        logger.info("pinpoint: %s submitted as flow run %s", delivery.name, run_id)

    def _look_after(self, key: str, flight: InFlight) -> None:
        record = find(self.store, flight.point, flight.suite)
        if record is not None:
            self._record(key, record)
        elif flight.ended_at is not None and time.monotonic() - flight.ended_at > RECORD_GRACE_S:
            self._end(key, f"flow run {flight.flow_run_id} ended as {flight.state} without a report")
        elif time.monotonic() > flight.deadline:
            self._end(key, "no report within the point's deadline", SkipReason.TIMEOUT)
        elif flight.ended_at is None and flight.flow_run_id is not None:
            kind, flight.state = self.api.state_of(flight.flow_run_id)
            flight.ended_at = time.monotonic() if kind in TERMINAL else None

    def _end(self, key: str, message: str, reason: SkipReason = SkipReason.CRASHED) -> None:
        """Gives a point that nobody else will finish its record, and frees what was exported for it."""
        flight = self._in_flight.get(key)
        if flight is None:
            return
        skipped = SkippedPoint(
            point=flight.point,
            suite=flight.suite,
            reason=reason.value,
            message=message,
            export_time_seconds=0.0,
            finished_at=now(),
        )
        record = commit(self.store, skipped)
        if flight.staged is not None:
            free_staged(flight.staged)
            delete_owned(self.store, flight.point)
        self._record(key, record)

    def _record(self, key: str, record: EvalReport | SkippedPoint) -> None:
        with self.changed:
            self._in_flight.pop(key, None)
            self.records.append(record)
            self.changed.notify_all()

    def _publish_progress(self) -> None:
        progress = self._progress
        if progress is not None and progress != self._published:
            write_progress(self.store, *progress)
            self._published = progress

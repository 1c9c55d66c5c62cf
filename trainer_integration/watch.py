"""Watches over points until each has its record: its flow's, or one that is written here because there will be no other.

The flow run of a point that was given up is Skipped in the UI, too, unless it has begun: then it finds the record, and ends.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

import httpx
from pydantic import ValidationError

from infra.errors import ConfigError
from infra.model import EvalReport, EvalRequest, SkippedPoint, SkipReason
from infra.records import commit, find, now
from infra.retention import retire_snapshots
from infra.staging import free_staged
from infra.store import Store
from trainer_integration.duties import PREFECT, STORE, Duties
from trainer_integration.in_flight import InFlight
from trainer_integration.outbox import Delivery
from trainer_integration.prefect_api import PrefectApi, PrefectRefused

logger = logging.getLogger(__name__)
RECORD_GRACE_S = 30.0  # between a flow run's end and its record being seen, or a crashed one beginning again


class Watch:
    """`records` and `in_flight` are of what was submitted here, not of what others left in the outbox.

    Whoever changes what `wait` waits for holds `changed`.
    """

    def __init__(self, store: Store, api: PrefectApi) -> None:
        self.api = api
        self.records: list[EvalReport | SkippedPoint] = []
        self.changed = threading.Condition()
        self._own: set[str] = set()
        self._in_flight: dict[str, InFlight] = {}
        self._left: dict[str, InFlight] = {}
        self._given_up: dict[str, SkippedPoint] = {}  # by flow run
        self._stores = {store.url: store}

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def wait(self, until: int, timeout_s: float) -> bool:
        """Waits until at most `until` points are in flight; says whether that came true."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self._in_flight) <= until, timeout_s)

    def add(self, key: str, flight: InFlight | None = None) -> None:
        """The record of `key` is one of `records`; its point is in flight until then, if it has a flow to come."""
        with self.changed:
            self._own.add(key)
            if flight is not None:
                self._in_flight[key] = flight

    def forget(self, key: str) -> None:
        """It was not submitted after all."""
        with self.changed:
            self._own.discard(key)
            self._in_flight.pop(key, None)

    def find(self, delivery: Delivery) -> InFlight | None:
        """What waits for the delivery's record. One that an earlier process left is watched from when it is first seen."""
        key = delivery.idempotency_key
        if delivery.skip is None and key not in self._own and key not in self._left:
            try:
                self._left[key] = InFlight.of(EvalRequest.model_validate(delivery.parameters["request"]))
            except (ValidationError, ConfigError, KeyError) as error:
                logger.warning("pinpoint: %s can't be watched, its request is not one of this version: %s", key, error)
        return self._in_flight.get(key) or self._left.get(key)

    def look(self, duties: Duties) -> None:
        """Looks at the record of each point, then at the state of its flow run."""
        for key, flight in [*self._in_flight.items(), *self._left.items()]:
            duties.attempt(partial(self._settle, key, flight), f"record of {key}", f"{STORE} {flight.store_url}")
            duties.attempt(partial(self._ask, flight), f"state of {key}", PREFECT)
        for flow_run_id, skip in list(self._given_up.items()):
            duties.attempt(partial(self._show, flow_run_id, skip), f"skip of {flow_run_id}", PREFECT)

    def recorded(self, key: str, record: EvalReport | SkippedPoint) -> None:
        with self.changed:
            self._in_flight.pop(key, None)
            self._left.pop(key, None)
            if key in self._own:
                self.records.append(record)
            self.changed.notify_all()

    def refuse(self, delivery: Delivery, message: str) -> None:
        """Its point has a record when this returns, if it can be made out. Raises StoreError."""
        flight = self.find(delivery)
        if flight is not None:
            self._end(delivery.idempotency_key, flight, f"Prefect refused the flow run: {message}")

    def unknown(self) -> list[str]:
        """Keys of own points in flight whose flow run is not known here."""
        return [key for key, flight in list(self._in_flight.items()) if flight.flow_run_id is None]

    def store(self, url: str) -> Store:
        """Raises ConfigError for a store that can't be opened here."""
        if url.rstrip("/") not in self._stores:
            self._stores[url.rstrip("/")] = Store(url)
        return self._stores[url.rstrip("/")]

    def _settle(self, key: str, flight: InFlight) -> None:
        record = find(self.store(flight.store_url), flight.point, flight.suite)
        if record is not None:
            self.recorded(key, record)
        elif flight.ended_at is not None and time.monotonic() - flight.ended_at > RECORD_GRACE_S:
            self._end(key, flight, f"flow run {flight.flow_run_id} ended as {flight.state} without a report")
        elif time.monotonic() > flight.deadline:
            self._end(key, flight, "no report within the point's deadline", SkipReason.TIMEOUT)

    def _ask(self, flight: InFlight) -> None:
        """Also of one that has ended: after a crash it may begin again."""
        if flight.flow_run_id is not None:
            flight.heard(*self.api.state_of(flight.flow_run_id))

    def _end(self, key: str, flight: InFlight, message: str, reason: SkipReason = SkipReason.CRASHED) -> None:
        """Gives a point that nobody else will finish its record, and frees what was exported for it."""
        store = self.store(flight.store_url)
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
        if flight.flow_run_id is not None and isinstance(record, SkippedPoint):
            self._given_up[flight.flow_run_id] = record
        self.recorded(key, record)

    def _show(self, flow_run_id: str, skip: SkippedPoint) -> None:
        try:
            self.api.show_skip(flow_run_id, skip)
        except PrefectRefused as error:
            logger.warning("pinpoint: flow run %s of %s can't be shown as skipped: %s", flow_run_id, skip.point.name, error)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:  # deleted by somebody
                raise
        del self._given_up[flow_run_id]

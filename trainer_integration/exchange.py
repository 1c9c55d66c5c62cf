"""One flow run is asked for and waited for in a thread of its own, so that no call that hangs can hold up who waits.

The thread may be stuck in Prefect or in the store for as long as it likes: whether to go on waiting is decided beside it,
from what it last heard of each and when.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

import httpx

from infra.errors import StoreError
from infra.model import EvalPoint, EvalReport, SkippedPoint, SkipReason
from infra.records import find
from infra.store import Store
from trainer_integration.outbox import Delivery
from trainer_integration.prefect_api import TERMINAL, PrefectApi, PrefectRefused

logger = logging.getLogger(__name__)
POLL_S = 0.5
RECORD_GRACE_S = 10.0  # between a flow run's end, or its deadline, and its record being seen
NOT_STARTED = frozenset({"", "SCHEDULED", "PENDING"})
PREFECT, STORE = "Prefect", "the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How many seconds may pass: until the point is over, until a runner takes it, without a word from a service."""

    deadline_s: float
    start_timeout_s: float
    silence_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    reason: SkipReason
    message: str


@dataclass(slots=True)
class Heard:
    """What is known of a flow run; all times are of one monotonic clock."""

    since: float
    prefect_at: float
    store_at: float
    flow_run_id: str | None = None
    state: str = ""
    ended_at: float | None = None
    refused: str = ""
    trouble: str = ""
    record: EvalReport | SkippedPoint | None = None

    @classmethod
    def at(cls, now: float) -> Heard:
        return cls(since=now, prefect_at=now, store_at=now)

    def verdict(self, now: float, patience: Patience) -> GivenUp | None:
        """Why there is nothing to wait for any more; None to go on."""
        if self.refused:
            return GivenUp(reason=SkipReason.CRASHED, message=f"Prefect refused the flow run: {self.refused}")
        if self.ended_at is not None and now - self.ended_at > RECORD_GRACE_S:
            message = f"flow run {self.flow_run_id} ended as {self.state} without a record"
            return GivenUp(reason=SkipReason.CRASHED, message=message)
        silent, heard_at = min((PREFECT, self.prefect_at), (STORE, self.store_at), key=lambda service: service[1])
        if now - heard_at > patience.silence_s:
            message = f"{silent} has not answered for {now - heard_at:.0f} s: {self.trouble or 'it hangs'}"
            return GivenUp(reason=SkipReason.UNHEALTHY, message=message)
        if self.state.upper() in NOT_STARTED and now - self.since > patience.start_timeout_s:
            message = f"no runner took flow run {self.flow_run_id} within {patience.start_timeout_s:g} s"
            return GivenUp(reason=SkipReason.UNHEALTHY, message=message)
        if now - self.since > patience.deadline_s + RECORD_GRACE_S:
            message = f"no record within {patience.deadline_s:g} s"
            return GivenUp(reason=SkipReason.TIMEOUT, message=message)
        return None


class Exchange:
    """Submits at once. `outcome` may be asked for from any thread; `end` leaves the thread to itself."""

    def __init__(self, delivery: Delivery, point: EvalPoint, suite: str, store: Store, api_url: str) -> None:
        self.delivery, self.point, self.suite, self.store = delivery, point, suite, store
        self._api_url = api_url
        self._heard = Heard.at(time.monotonic())
        self._ended, self._recorded = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="pinpoint-live", daemon=True).start()

    def outcome(self, patience: Patience, wait_s: float) -> EvalReport | SkippedPoint | GivenUp | None:
        """The record, or why none is waited for any more; None if there is neither after `wait_s`."""
        self._recorded.wait(wait_s)
        return self._heard.record or self._heard.verdict(time.monotonic(), patience)

    @property
    def submitted(self) -> bool:
        return self._heard.flow_run_id is not None

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        api = PrefectApi(self._api_url)
        try:
            while not self._ended.is_set() and self._heard.record is None and not self._heard.refused:
                self._ask_prefect(api)
                self._ask_store()
                self._ended.wait(POLL_S if self._heard.record is None else 0.0)
        except Exception as error:
            logger.exception("pinpoint: the flow run of %s can't be followed", self.point.name)
            self._heard.refused = f"{type(error).__name__}: {error}"
        finally:
            api.close()

    def _ask_prefect(self, api: PrefectApi) -> None:
        heard = self._heard
        try:
            if heard.flow_run_id is None:
                heard.flow_run_id = api.create_flow_run(self.delivery)
            else:
                heard.state, _ = api.state_of(heard.flow_run_id)
        except PrefectRefused as error:
            heard.refused = str(error)
        except httpx.HTTPError as error:
            heard.trouble = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            heard.prefect_at = time.monotonic()
            if heard.state in TERMINAL and heard.ended_at is None:
                heard.ended_at = heard.prefect_at

    def _ask_store(self) -> None:
        try:
            record = find(self.store, self.point, self.suite)
        except (StoreError, OSError) as error:
            self._heard.trouble = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        self._heard.store_at = time.monotonic()
        if record is not None:
            self._heard.record = record
            self._recorded.set()

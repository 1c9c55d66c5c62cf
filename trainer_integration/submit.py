"""Delivers what the outbox holds and watches over what was delivered, in a thread that training never waits for.

Prefect up, slow, hung, down or restarting: the thread tries again with a growing pause. Each delivery fails for itself: one
that nobody will ever take holds up no other. Every delivered point, also one that an earlier process left, ends with a
record in the store, if need be one that this thread writes because the flow run ended without one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from infra.alarms import alarm_of
from infra.errors import ConfigError, RecordDamaged
from infra.model import SkippedPoint
from infra.records import commit, write_progress
from infra.staging import renew_staged
from infra.store import Store
from trainer_integration.bounded import within
from trainer_integration.duties import DEPLOYMENT, PREFECT, STORE, Duties
from trainer_integration.in_flight import InFlight
from trainer_integration.intents import Intent, settle_left
from trainer_integration.outbox import Delivery, Outbox
from trainer_integration.owners import Owner
from trainer_integration.prefect_api import PrefectApi, PrefectRefused
from trainer_integration.watch import Watch

logger = logging.getLogger(__name__)
TICK_S = 0.25
POLL_S = 1.0


class Submitter:
    """Owns the thread; `watch` knows what is in flight and what has its record."""

    def __init__(self, outbox: Outbox, store: Store, api_url: str) -> None:
        self.outbox, self.store = outbox, store
        self.owner = Owner(outbox.folder.parent)
        outbox.files.prepare()
        self.api = PrefectApi(api_url)
        self.watch = Watch(store, self.api)
        self._put: list[Path] = []
        self._kept: list[tuple[Delivery, Intent | None]] = []
        self._writing = 0
        self._committed: set[str] = set()
        self._refused: dict[str, str] = {}
        self._sent: dict[str, tuple[Path, Delivery]] = {}
        self._progress: dict[tuple[str, int], int] = {}
        self._published: dict[tuple[str, int], int] = {}
        self._stopping = threading.Event()
        self._duties, self._next_poll = Duties(), 0.0
        self._thread = threading.Thread(target=self._run, name="pinpoint-submit", daemon=True)
        self._thread.start()

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
        with self.watch.changed:
            self.watch.add(key, watched)
            self._writing += 1
        put = partial(self.outbox.put, self.owned(delivery), stem)
        try:
            file = put() if late is None else within(self.outbox.wait_s, put, partial(self._written_late, delivery, late))
        except Exception as error:
            self._written(key, error)
            raise
        if file is None:
            logger.warning("pinpoint: %s takes long to be written to %s: training goes on", delivery.name, self.outbox.folder)
            return False
        self._sent[key] = file, delivery
        self._written(key, file)
        return True

    def _written(self, key: str, outcome: Path | Exception) -> None:
        with self.watch.changed:
            self._writing -= 1
            if isinstance(outcome, Path):
                self._put.append(outcome)
            else:
                self.watch.forget(key)

    def _written_late(self, delivery: Delivery, late: Callable[[Exception | None], None], outcome: Path | Exception) -> None:
        if isinstance(outcome, Exception):
            logger.error("pinpoint: %s could not be written: %s", delivery.name, outcome)
        if isinstance(outcome, Path):
            self._sent[delivery.idempotency_key] = outcome, delivery
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
            with self.watch.changed:
                self.watch.add(delivery.idempotency_key)
                self._kept.append((delivery, intent))
        elif intent is not None:
            intent.fulfilled()

    def progressed(self, run: str, attempt: int, step: int) -> None:
        self._progress[run, attempt] = step

    def drained(self, timeout_s: float) -> bool:
        """Waits until all that was submitted here is delivered and has its record; says whether that came true."""
        deadline = time.monotonic() + timeout_s
        while self.watch.wait(0, max(0.0, deadline - time.monotonic())):
            with self.watch.changed:
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
            self._duties.attempt(self._tick, "the outbox")
            self._stopping.wait(TICK_S)
        self._duties.attempt(self._publish_progress, "the last progress")
        self.api.close()

    def _tick(self) -> None:
        """Tries each duty though another one fails: a point ends by its deadline also while Prefect is away."""
        for kept in list(self._kept):
            self._carry_on(*kept)
        pending = [found for found in self.outbox.pending() if self.outbox.is_for(found[1], self.api.url)]
        for file, delivery in pending:  # the record of a skip does not wait for Prefect, nor behind a delivery that does
            if delivery.skip is not None and delivery.idempotency_key not in self._committed:
                need = f"{STORE} {delivery.store_url}"
                self._duties.attempt(partial(self._commit_skip, delivery, delivery.skip), f"record of {file.name}", need)
        for file, delivery in pending:
            if delivery.skip is None and delivery.idempotency_key in self._refused:
                need = f"{STORE} {delivery.store_url}"
                self._duties.attempt(partial(self._give_up, file, delivery), f"refusal of {file.name}", need)
            elif delivery.skip is None or delivery.idempotency_key in self._committed:
                needs = PREFECT, f"{DEPLOYMENT} {delivery.deployment}"
                self._duties.attempt(partial(self._deliver, file, delivery), f"delivery of {file.name}", *needs)
        if time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + POLL_S
            self._duties.attempt(partial(settle_left, self.outbox), "what dead trainers left")
            self._duties.attempt(self._publish_progress, "progress", f"{STORE} {self.store.url}")
            self._duties.attempt(self._learn, "flow runs of own points")
            self.watch.look(self._duties)

    def _carry_on(self, delivery: Delivery, intent: Intent | None) -> None:
        """Of a skip that has no file: its record first, then its flow run."""
        key, name = delivery.idempotency_key, delivery.name
        if delivery.skip is not None and key not in self._committed:
            duty = partial(self._commit_skip, delivery, delivery.skip)
            self._duties.attempt(duty, f"record of {name}", f"{STORE} {delivery.store_url}")
        if key in self._committed:
            needs = PREFECT, f"{DEPLOYMENT} {delivery.deployment}"
            self._duties.attempt(partial(self._deliver_kept, delivery, intent), f"delivery of {name}", *needs)

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
        self.watch.recorded(delivery.idempotency_key, commit(self.watch.store(delivery.store_url), skip))
        self._committed.add(delivery.idempotency_key)

    def _deliver(self, file: Path, delivery: Delivery) -> None:
        flight = self.watch.find(delivery)
        for folder in delivery.staged:
            renew_staged(folder)  # its flow may wait in the queue for as long as if it had been taken at once
        try:
            run_id = self.api.create_flow_run(self._marked(delivery))
        except PrefectRefused as error:
            logger.error("pinpoint: %s can't be submitted: %s", delivery.name, error)
            self._refused[delivery.idempotency_key] = str(error)
            self._give_up(file, delivery)
            return
        self.outbox.remove(file)
        self._committed.discard(delivery.idempotency_key)
        if flight is not None:
            flight.flow_run_id = run_id
        logger.info("pinpoint: %s submitted as flow run %s", delivery.name, run_id)

    def _give_up(self, file: Path, delivery: Delivery) -> None:
        """What Prefect refused has its record before its file is set aside: nobody looks at that again."""
        try:
            if delivery.skip is None:
                self.watch.refuse(delivery, self._refused[delivery.idempotency_key])
        except (ConfigError, RecordDamaged) as error:  # which no waiting mends
            logger.error("pinpoint: %s can't have a record: %s", delivery.name, error)
        with suppress(FileNotFoundError):  # another process on this machine may have been refused, too
            file.rename(file.with_suffix(".refused"))
        self._refused.pop(delivery.idempotency_key, None)

    def _learn(self) -> None:
        """Which flow runs own points have that another process delivered: Prefect gives the one that it has of the same key."""
        unknown = set(self.watch.unknown())
        for key, (file, delivery) in list(self._sent.items()):
            if key not in unknown:
                del self._sent[key]
            elif not file.exists() and not file.with_suffix(".refused").exists():
                duty = partial(self._deliver, file, delivery)
                self._duties.attempt(duty, f"flow run of {delivery.name}", PREFECT, f"{DEPLOYMENT} {delivery.deployment}")

    def _marked(self, delivery: Delivery) -> Delivery:
        if delivery.skip is None:
            return delivery
        alarm = alarm_of(self.watch.store(delivery.store_url), delivery.skip)
        return delivery.model_copy(update={"tags": (*delivery.tags, alarm.tag)}) if alarm else delivery

    def _publish_progress(self) -> None:
        for (run, attempt), step in list(self._progress.items()):
            if self._published.get((run, attempt)) != step:
                write_progress(self.store, run, attempt, step)
                self._published[run, attempt] = step

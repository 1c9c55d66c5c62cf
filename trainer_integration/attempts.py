"""A step that is asked for again gets an attempt that its run has not used, and training waits a moment for it at most."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial

from infra.errors import PinpointError
from infra.records import next_attempt, note_attempt
from infra.store import Store

logger = logging.getLogger(__name__)
WAIT_S = 0.25  # a store that takes longer to count an attempt is not waited for
UNCOUNTED = 1_000_000  # attempts above are no counts of starts: the clock makes them unique


def origin_of(store: Store, run: str) -> str:
    """The id of the run's first start in this store, which no other store has, nor this one once it was emptied.

    To be asked for when the run has been started, before training. Raises StoreError.
    """
    try:
        return str(json.loads(store.read(f"runs/{run}/starts/{0:06d}.json"))["id"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return uuid.uuid4().hex  # deliveries have their keys with them: what this process asks for is told apart all the same


def another_attempt(store: Store, run: str, last: int) -> int:
    """After `last`: counted by the store, or taken from the clock, and later ones from that, if the store does not do it soon.

    It may take minutes to fail, or hang.
    """
    counted: list[int] = []
    _beside(partial(_count, store, run, counted), run, WAIT_S)
    if counted and counted[0] > last:
        return counted[0]
    attempt = last + 1 if last >= UNCOUNTED else last + UNCOUNTED + int(time.time())
    _beside(partial(_note, store, run, attempt), run, 0.0)  # so that later starts of the run have higher ones
    return attempt


def _beside(work: Callable[[], None], run: str, wait_s: float) -> None:
    thread = threading.Thread(target=work, name="pinpoint-attempt", daemon=True)
    try:
        thread.start()
        thread.join(wait_s)
    except RuntimeError as error:  # no more threads: the limit of processes, for one
        logger.warning("pinpoint: an attempt of %s is not counted: %s", run, error)


def _count(store: Store, run: str, counted: list[int]) -> None:
    try:
        counted.append(next_attempt(store, run))
    except (PinpointError, OSError) as error:
        logger.warning("pinpoint: an attempt of %s is not counted: %s", run, error)


def _note(store: Store, run: str, attempt: int) -> None:
    try:
        note_attempt(store, run, attempt)
    except (PinpointError, OSError) as error:
        logger.warning("pinpoint: attempt %d of %s is not noted, later starts have lower ones: %s", attempt, run, error)

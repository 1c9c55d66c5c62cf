"""What trainers left in this machine's outboxes is delivered without one: by hand, or by the sweeper.

Points that were decided on become flow runs; due steps whose trainer died before that become skipped points. What Prefect or
the store does not take in time stays where it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from infra.config import Settings
from infra.store import Store
from trainer_integration.intents import settle_left
from trainer_integration.outbox import Delivery, Outbox
from trainer_integration.submit import TICK_S, Submitter

FOLDERS = ("outbox", "outbox-live")
API_URL = "http://127.0.0.1:4200/api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """`settled` are the due steps of dead trainers, which are among the others; `waiting` is still in the outbox.

    `unreadable` are files that say of points, and that nobody here can deliver.
    """

    delivered: tuple[Delivery, ...] = ()
    settled: tuple[Delivery, ...] = ()
    refused: tuple[Delivery, ...] = ()
    waiting: tuple[Delivery, ...] = ()
    unreadable: tuple[Path, ...] = ()

    def __add__(self, other: Left) -> Left:
        return Left(
            delivered=self.delivered + other.delivered,
            settled=self.settled + other.settled,
            refused=self.refused + other.refused,
            waiting=self.waiting + other.waiting,
            unreadable=self.unreadable + other.unreadable,
        )


def deliver_left(settings: Settings, wait_s: float) -> Left:
    """Tries for up to `wait_s`. A trainer that is at work delivers for itself meanwhile: nothing is delivered twice.

    What such a trainer has for another Prefect is left to it, and is not `waiting`.
    """
    home, found = settings.home.expanduser(), Left()
    for name in FOLDERS:
        if (home / name).is_dir():
            found += _of(Outbox(home / name), settings, wait_s)
    return found


def _of(outbox: Outbox, settings: Settings, wait_s: float) -> Left:
    settled = settle_left(outbox)
    api_url = (settings.prefect_api_url or API_URL).rstrip("/")
    before = {file: found for file, found in outbox.pending() if outbox.is_for(found, api_url)}
    if not before:
        return Left(unreadable=tuple(outbox.unread()))
    submitter = Submitter(outbox, Store(settings.store, settings.s3_access()), api_url)
    deadline = time.monotonic() + wait_s
    while any(file.exists() for file in before) and time.monotonic() < deadline:
        time.sleep(TICK_S / 5)
    submitter.close()
    refused = {file for file in before if file.with_suffix(".refused").exists()}
    waiting = {file for file in before if file.exists()}
    return Left(
        delivered=tuple(delivery for file, delivery in before.items() if file not in refused | waiting),
        settled=tuple(settled),
        refused=tuple(before[file] for file in before if file in refused),
        waiting=tuple(before[file] for file in before if file in waiting),
        unreadable=tuple(outbox.unread()),
    )

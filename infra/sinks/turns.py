"""One projection of a run to a sink at a time, on whatever machine: each turn is an object that one process alone can create.

A turn that nobody has renewed for `STALE_S`, by the store's clock, is over, however its process ended. Turns that are over
stay for `KEPT` more: a folder's listing is not of one moment, so whoever took a turn on the word of an old one finds its number
given away already.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from infra.errors import AlreadyExists
from infra.store import Store

logger = logging.getLogger(__name__)
RENEW_S = 10.0
STALE_S = 60.0
LOOK_S = 0.5
KEPT = 16
DONE = ".done"


@contextmanager
def turn(store: Store, prefix: str) -> Iterator[None]:
    """Waits for the turns before, then has its own for the length of the body."""
    mine = _take(store, prefix)
    ended = threading.Event()
    keeper = threading.Thread(target=_renew, args=(store, mine, ended), name="pinpoint-sink-turn", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
        store.write(mine + DONE, b"")


def _take(store: Store, prefix: str) -> str:
    while True:
        names = _names(store, prefix)
        last = _last(names)
        if last in names and last + DONE not in names and _alive(store, prefix, last):
            time.sleep(LOOK_S)
            continue
        mine = f"{int(last) + 1:08d}"
        try:
            store.create(f"{prefix}/{mine}", b"")
        except AlreadyExists:
            continue
        if _last(_names(store, prefix)) != mine:  # it had been, and was tidied away since we looked
            store.delete(f"{prefix}/{mine}")
            continue
        for name in names:
            if _number(name) <= int(mine) - KEPT:
                store.delete(f"{prefix}/{name}")
        return f"{prefix}/{mine}"


def _names(store: Store, prefix: str) -> set[str]:
    return {key.rpartition("/")[2] for key in store.list(prefix)}


def _number(name: str) -> int:
    return int(name.removesuffix(DONE))


def _last(names: set[str]) -> str:
    return f"{max(map(_number, names), default=0):08d}"


def _alive(store: Store, prefix: str, name: str) -> bool:
    written = store.written(prefix).get(f"{prefix}/{name}")
    return written is not None and store.clock() - written < STALE_S


def _renew(store: Store, key: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW_S):
        try:
            store.write(key, b"")
        except Exception as error:  # noqa: BLE001 (a thread that ends would lose the turn)
            logger.warning("turn %s not renewed, tried again in %.0f s: %s", key, RENEW_S, error)

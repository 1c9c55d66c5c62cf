"""A re-evaluation is executed by the one flow run that begins its try, which says all the time that it is alive.

A flow run that stood still for so long that its try was taken over notices when it goes on, and ends; what it measured can't
become the point's record any more, because that is the taker's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import anyio
from prefect.runtime import flow_run

from infra.errors import PinpointError, SnapshotMissing, StoreError
from infra.holds import READING_S, hold, release
from infra.ledger import TTL_S, begin, begun_by, renew, was_taken, withdraw
from infra.model import EvalRequest, LedgerTry
from infra.store import Store, split_location

logger = logging.getLogger(__name__)
RELEASE_S = 30.0


class NotOurs(Exception):
    """Somebody else executes this try, or has done so, or it was taken away before it began."""


@asynccontextmanager
async def executing(request: EvalRequest) -> AsyncIterator[None]:
    """The body runs at most once for a try of the ledger; any other request just runs. Else raises NotOurs."""
    ticket = request.ledger
    if ticket is None:
        yield
        return
    store = Store(request.store_url)
    execution = f"{flow_run.id or 'no flow run'} {uuid.uuid4().hex}"
    if not await asyncio.to_thread(begin, store, ticket, request.point, request.suite.name, execution):
        raise NotOurs(f"try {ticket.number} at {ticket.key} is somebody else's, or is over: `pinpoint retry {ticket.key}`")
    with anyio.CancelScope() as scope, _kept_alive(store, ticket, request.point.name, scope):
        yield
    if scope.cancelled_caught:
        raise NotOurs(f"try {ticket.number} at {ticket.key} was taken over, because this flow run stood still for too long")


@contextmanager
def _kept_alive(store: Store, ticket: LedgerTry, name: str, scope: anyio.CancelScope) -> Iterator[None]:
    """In a thread of its own, which no busy event loop delays; it ends the scope when the try is no longer this process's."""
    ended, loop = threading.Event(), asyncio.get_running_loop()

    def keep() -> None:
        while True:
            try:
                _say_alive(store, ticket, name)
                if was_taken(store, ticket):
                    logger.warning("%s: try %d at %s was taken over", name, ticket.number, ticket.key)
                    loop.call_soon_threadsafe(scope.cancel)
                    return
            except Exception as error:  # noqa: BLE001 (whatever it is, a thread that ends would lose the try)
                logger.warning("%s: its try at %s was not renewed, again in %g s: %s", name, ticket.key, TTL_S / 4, error)
            if ended.wait(TTL_S / 4):
                return

    thread = threading.Thread(target=keep, name="pinpoint-ledger", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=RELEASE_S)
        _let_go(ticket)


def _say_alive(store: Store, ticket: LedgerTry, name: str) -> None:
    renew(store, ticket)
    if ticket.kept:
        try:
            hold(ticket.kept, _hold_id(ticket), by=f"evaluation of {name}", ttl_s=READING_S)
        except (StoreError, OSError) as error:
            logger.info("%s is not held: %s", ticket.kept, error)


def _let_go(ticket: LedgerTry) -> None:
    if ticket.kept:
        try:
            release(ticket.kept, _hold_id(ticket))
        except (StoreError, OSError) as error:
            logger.warning("the hold of %s ends by itself within %g s: %s", ticket.kept, READING_S, error)


def is_ours_to_settle(request: EvalRequest, flow_run_id: str) -> bool:
    """Whether a flow run that crashed, or was cancelled, may leave its try's record: another one may be at that same try."""
    ticket = request.ledger
    if ticket is None:
        return True
    store = Store(request.store_url)
    ours = withdraw(store, ticket) or (begun_by(store, ticket) or "").startswith(flow_run_id)
    if ours:
        _let_go(ticket)
    return ours


def _hold_id(ticket: LedgerTry) -> str:
    return f"{ticket.key}-{ticket.number}"


@asynccontextmanager
async def still_there(request: EvalRequest) -> AsyncIterator[None]:
    """Whatever fails while somebody's checkpoint is being deleted failed for that, and is `ckpt_missing`."""
    try:
        yield
    except (PinpointError, OSError, TimeoutError) as error:
        if request.source.staged or await asyncio.to_thread(partial(_exists, request.source.path)):
            raise
        raise SnapshotMissing(f"checkpoint {request.source.path} was deleted while it was evaluated: {error}") from error


def _exists(path: str) -> bool:
    """By its config, or an adapter's, which every checkpoint has. In doubt it is there."""
    store, key = split_location(path if "://" in path else Path(path).absolute().as_uri())
    try:
        return any(store.exists(f"{key}/{name}") for name in ("config.json", "adapter_config.json"))
    except StoreError:
        return True

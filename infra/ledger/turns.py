"""Who has a try, from its claim to its end: each step is one object, created or written once."""

from __future__ import annotations

import json
import socket
import uuid

from infra.errors import AlreadyExists, ConfigError
from infra.ledger.claims import LEDGER, TTL_S, WITHDRAWN, Claim, home_of
from infra.ledger.entries import Entry, Try
from infra.model import EvalPoint, LedgerKey, LedgerTry, SkippedPoint, SkipReason
from infra.records import commit, find, now
from infra.store import Store


def claim(
    store: Store,
    key: LedgerKey,
    number: int,
    *,
    point: EvalPoint,
    suite: str,
    suite_digest: str,
    datasets: tuple[str, ...],
    checkpoint: str,
    kept: str,
) -> Claim | None:
    """The claim of the n-th try at a key, or None: somebody else has it."""
    made = Claim(
        key=key.text,
        number=number,
        id=uuid.uuid4().hex,
        by=socket.gethostname(),
        at=now(),
        point=point,
        suite=suite,
        suite_digest=suite_digest,
        datasets=datasets,
        checkpoint=checkpoint,
        kept=kept,
    )
    mine = _created(store, f"{home_of(key, number)}/claim.json", made.model_dump_json(indent=1).encode())
    return made if mine else None


def queued(store: Store, ticket: LedgerTry, flow_run: str, server: str = "") -> None:
    """Prefect has the flow run, at this server: the claim lives as long as a queue may be, and again so long from now."""
    store.write(f"{_home_of(ticket)}/queued.json", json.dumps({"flow_run": flow_run, "server": server}).encode())


def begin(store: Store, ticket: LedgerTry, point: EvalPoint, suite: str, execution: str) -> bool:
    """Whether this execution is the one of its try. It is not if the try was begun before, was taken away, or has ended."""
    if not _created(store, f"{_home_of(ticket)}/begun.json", execution.encode()):
        return False
    return find(store, point, suite) is None


def begun_by(store: Store, ticket: LedgerTry) -> str | None:
    """The execution that has begun the try, or who withdrew it; None if nobody has."""
    try:
        return store.read(f"{_home_of(ticket)}/begun.json").decode()
    except FileNotFoundError:
        return None


def renew(store: Store, ticket: LedgerTry) -> None:
    """The execution is alive for another `TTL_S`, unless it was taken over."""
    store.write(f"{_home_of(ticket)}/alive", b"")


def was_taken(store: Store, ticket: LedgerTry) -> bool:
    """Whether somebody has taken the try over, because this execution was away for longer than `TTL_S`."""
    return store.exists(f"{_home_of(ticket)}/taken.json")


def withdraw(store: Store, ticket: LedgerTry) -> bool:
    """Ends a try that nobody has begun; False if a flow run has. A flow run that comes later finds that it may not begin."""
    home = _home_of(ticket)
    try:
        store.create(f"{home}/begun.json", WITHDRAWN + socket.gethostname().encode())
    except AlreadyExists:
        return store.read(f"{home}/begun.json").startswith(WITHDRAWN)
    return True


def take_over(store: Store, dead: Try) -> bool:
    """Ends a try whose holder is dead, so that the next can be claimed; False if it is alive after all, or has its report.

    Safe to do several times and by several at once.
    """
    if dead.state in ("claimed", "queued"):
        return withdraw(store, dead.claim.ticket)
    home = _home_of(dead.claim.ticket)
    store.write(f"{home}/taken.json", socket.gethostname().encode())
    lost = SkippedPoint(
        point=dead.claim.point,
        suite=dead.claim.suite,
        reason=SkipReason.CRASHED.value,
        message=f"its flow run was not heard of for {TTL_S:g} s, and the ledger has taken it over",
        export_time_seconds=0.0,
        finished_at=now(),
    )
    return isinstance(commit(store, lost), SkippedPoint)


def forgive(store: Store, known: Entry) -> None:
    """What failed so far counts no longer: the next trigger tries again. Raises ConfigError if there is nothing to try.

    Of a try that can't be read nobody knows whether it waits: if it does, it may begin no more.
    """
    last = known.last
    if last is None or known.report is not None or known.under_way:
        raise ConfigError(f"{known.key.text} has {'a report' if known.report else 'a try that is under way'}: nothing to retry")
    if last.state == "unreadable":
        withdraw(store, last.claim.ticket)
    store.write(f"{LEDGER}/{known.key.place}/{known.key.suite}/forgiven/{last.claim.number:04d}", b"")


def _created(store: Store, path: str, data: bytes) -> bool:
    """Whether the object is ours. The S3 client's own retry can meet its first write, so a loser looks whose it is."""
    try:
        store.create(path, data)
    except AlreadyExists:
        return store.read(path) == data
    return True


def _home_of(ticket: LedgerTry) -> str:
    return home_of(LedgerKey.parse(ticket.key), ticket.number)

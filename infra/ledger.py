"""A key of the ledger is executed by one flow run at a time, and never again once it has a report, whoever asks and how often.

All of it rests on the store's conditional create. Below `ledger/CHECKPOINT-ENGINES/SUITE/`, of the n-th try at a key:

* `000n/claim.json` is created by whoever will submit it, so of any number of triggers one has it;
* `000n/queued.json` says which Prefect has taken it, as which flow run;
* `000n/begun.json` is created by the flow run that executes it, or by who takes the claim away before: one of them has it;
* `000n/alive` is written again and again while it runs; who stops doing so for `TTL_S`, by the store's clock, has lost it;
* `000n/taken.json` is written by who takes it over from a dead flow run.

How a try ended is said by the record of its point, which no other try has, and which is created once: who takes a try over
creates a skip there, so a holder that comes back finds that its own report is not the one that counts.

A claim or a record that can't be read makes its try `unreadable`, which is left alone until somebody has it tried again. Names
of any other shape are not the ledger's, and are passed over.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import uuid
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from infra.errors import AlreadyExists, ConfigError
from infra.model import EvalPoint, EvalReport, LedgerKey, LedgerTry, SkippedPoint, SkipReason
from infra.records import commit, find, now, record_key
from infra.store import Store

logger = logging.getLogger(__name__)
LEDGER = "ledger"
TTL_S = 120.0
QUEUE_S = 6 * 3600.0  # a flow run that waited so long without beginning is taken for lost
WITHDRAWN = b"withdrawn by "
State = Literal["claimed", "queued", "running", "report", "skip", "lost", "unreadable"]
_PLACED = re.compile(rf"{LEDGER}/([^/-]+-[^/-]+)/([^/-]+)/(?:(\d+)/([^/]+)|forgiven/(\d+))", re.ASCII)
FINAL = frozenset({SkipReason.CKPT_INVALID.value})  # a verdict on bytes that are part of the key


class Claim(BaseModel):
    """Who submits a try, at which point, of what: written once. `datasets` are digests of what is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: str
    number: int
    id: str
    by: str
    at: str
    point: EvalPoint
    suite: str
    suite_digest: str
    datasets: tuple[str, ...]
    checkpoint: str
    kept: str

    @property
    def ticket(self) -> LedgerTry:
        """What the flow run is given."""
        return LedgerTry(key=self.key, number=self.number, id=self.id, checkpoint=self.checkpoint, kept=self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A try as it stands. `alive` says that somebody is at it; `record` is how it ended.

    `flow_run` and `server`, Prefect's, are known once it is queued; `age` is seconds since it was last heard of. `damage` says
    what can't be read of it; if that is its claim, this one has the key and the number, and else only blanks.
    """

    claim: Claim
    state: State
    alive: bool = False
    record: EvalReport | SkippedPoint | None = None
    flow_run: str = ""
    server: str = ""
    age: float = 0.0
    damage: str = ""

    @property
    def reason(self) -> str:
        return self.record.reason if isinstance(self.record, SkippedPoint) else ""

    @property
    def why(self) -> str:
        """For people: how the try ended, if it did so without a report."""
        if self.damage:
            return f"try {self.claim.number}: {self.damage}"
        if isinstance(self.record, SkippedPoint):
            return f"try {self.claim.number} was skipped, {self.record.reason}: {self.record.message}"
        return "" if self.alive or self.record else f"try {self.claim.number} ended without a record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """All tries at one key, and the number of the last one that `retry` has forgiven."""

    key: LedgerKey
    tries: tuple[Try, ...] = ()
    forgiven: int = 0

    @property
    def last(self) -> Try | None:
        return self.tries[-1] if self.tries else None

    @property
    def report(self) -> EvalReport | None:
        return next((one.record for one in reversed(self.tries) if isinstance(one.record, EvalReport)), None)

    @property
    def under_way(self) -> bool:
        return self.last is not None and self.last.alive

    def given_up(self, tries: int) -> bool:
        """Whether the failures since the last `retry` are final, or as many as may be. A try that never began is none."""
        failed = [one for one in self.tries if one.claim.number > self.forgiven and one.state in ("skip", "running")]
        return any(one.reason in FINAL for one in failed) or len(failed) >= tries

    @property
    def unreadable(self) -> bool:
        """Whether nobody can tell how the last try stands: it may have its report, or be under way."""
        return self.last is not None and self.last.state == "unreadable" and self.last.claim.number > self.forgiven


def entries(store: Store, place: str, clock: float | None = None) -> dict[str, Entry]:
    """What the ledger has of one checkpoint on such engines, by key."""
    written = store.written(f"{LEDGER}/{place}")
    clock = (store.clock() if written else 0.0) if clock is None else clock
    found: dict[str, dict[int, Try]] = {}
    forgiven: dict[str, int] = {}
    for path in written:
        if (placed := _PLACED.fullmatch(path)) is None:
            continue
        key = f"{place}-{placed[2]}"
        if placed[4] == "claim.json":
            found.setdefault(key, {})[int(placed[3])] = _standing(store, path.rpartition("/")[0], written, clock)
        elif placed[5]:
            forgiven[key] = max(forgiven.get(key, 0), int(placed[5]))
    return {
        key: Entry(
            key=LedgerKey.parse(key), tries=tuple(one for _, one in sorted(tries.items())), forgiven=forgiven.get(key, 0)
        )
        for key, tries in found.items()
    }


def entry(store: Store, key: LedgerKey) -> Entry:
    return entries(store, key.place).get(key.text, Entry(key=key))


def live_tries(store: Store) -> list[Try]:
    """Of the whole ledger, whoever asked for them: one listing, and a look at what was written lately."""
    written = store.written(LEDGER)
    clock = store.clock() if written else 0.0
    homes = [path.rpartition("/")[0] for path in written if path.endswith("/claim.json") and _PLACED.fullmatch(path)]
    recent = [home for home in homes if _may_be_alive(home, written, clock)]
    return [one for home in recent if (one := _standing(store, home, written, clock)).alive]


def _may_be_alive(home: str, written: dict[str, float], clock: float) -> bool:
    if (begun := written.get(f"{home}/begun.json")) is not None:
        return clock - max(begun, written.get(f"{home}/alive", 0.0)) < TTL_S
    return clock - written.get(f"{home}/queued.json", written[f"{home}/claim.json"]) < QUEUE_S


def _standing(store: Store, home: str, written: dict[str, float], clock: float) -> Try:
    claim, place = None, f"{home}/claim.json"
    try:
        claim = Claim.model_validate_json(store.read(place))
        place = record_key(claim.point, claim.suite)
        record = find(store, claim.point, claim.suite)
    except (ValueError, ConfigError) as error:  # it is damaged, or a newer Pinpoint's
        said = " ".join(str(error).split())[:300]
        damage = said if place in said else f"{store.url_of(place)} can't be read: {said}"
        return Try(claim=claim or _blank(home), state="unreadable", damage=damage)
    flow_run, server = _taken_by(store.read(f"{home}/queued.json")) if f"{home}/queued.json" in written else ("", "")
    known = Try(claim=claim, state="claimed", record=record, flow_run=flow_run, server=server)
    if record is not None:
        return replace(known, state="report" if isinstance(record, EvalReport) else "skip")
    if (begun := written.get(f"{home}/begun.json")) is not None:
        if store.read(f"{home}/begun.json").startswith(WITHDRAWN):
            return replace(known, state="lost")
        age = clock - max(begun, written.get(f"{home}/alive", 0.0))
        return replace(known, state="running", alive=age < TTL_S, age=age)
    if (queued := written.get(f"{home}/queued.json")) is not None:
        return replace(known, state="queued", alive=clock - queued < QUEUE_S, age=clock - queued)
    age = clock - written[f"{home}/claim.json"]
    return replace(known, alive=age < TTL_S, age=age)


def _taken_by(data: bytes) -> tuple[str, str]:
    """The flow run and its Prefect server; before both were written it was the flow run alone."""
    text = data.decode(errors="replace")
    try:
        known = json.loads(text)
        return str(known["flow_run"]), str(known["server"])
    except (ValueError, TypeError, KeyError):
        return text, ""


def _blank(home: str) -> Claim:
    """What its place says of a claim that can't be read."""
    place, suite, number = home.split("/")[1:]
    blank = dict.fromkeys(("id", "by", "at", "suite_digest", "checkpoint", "kept"), "")
    point = EvalPoint(run="unreadable", step=0)
    return Claim(key=f"{place}-{suite}", number=int(number), point=point, suite="unreadable", datasets=(), **blank)


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
    mine = _created(store, f"{_home(key, number)}/claim.json", made.model_dump_json(indent=1).encode())
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


def find_key(store: Store, text: str) -> Entry:
    """The entry that a key, or the beginning of one, names. Raises ConfigError for none, or several."""
    keys = sorted({f"{placed[1]}-{placed[2]}" for placed in _placed(store) if placed[4] == "claim.json"})
    found = [key for key in keys if key.startswith(text)]
    if len(found) != 1:
        what = "nothing in the ledger has" if not found else f"{len(found)} entries of the ledger have"
        raise ConfigError(f"{what} a key that begins with {text!r}: `pinpoint retry` without a key lists what has failed")
    return entry(store, LedgerKey.parse(found[0]))


def all_entries(store: Store) -> list[Entry]:
    """The whole ledger, by key."""
    places = sorted({placed[1] for placed in _placed(store)})
    clock = store.clock() if places else 0.0
    return [one for place in places for one in entries(store, place, clock).values()]


def _placed(store: Store) -> list[re.Match[str]]:
    return [placed for path in store.list(LEDGER) if (placed := _PLACED.fullmatch(path))]


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
    return _home(LedgerKey.parse(ticket.key), ticket.number)


def _home(key: LedgerKey, number: int) -> str:
    return f"{LEDGER}/{key.place}/{key.suite}/{number:04d}"

"""What stands in the ledger: all tries at a key, and how each of them stands."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from infra.errors import ConfigError
from infra.ledger.claims import LEDGER, QUEUE_S, TTL_S, WITHDRAWN, Claim
from infra.model import EvalPoint, EvalReport, LedgerKey, SkippedPoint, SkipReason
from infra.records import find, record_key
from infra.store import Store

State = Literal["claimed", "queued", "running", "report", "skip", "lost", "unreadable"]
FINAL = frozenset({SkipReason.CKPT_INVALID.value})  # a verdict on bytes that are part of the key
_PLACED = re.compile(rf"{LEDGER}/([^/-]+-[^/-]+)/([^/-]+)/(?:(\d+)/([^/]+)|forgiven/(\d+))", re.ASCII)


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
    def measured(self) -> bool:
        """Whether its report has a score for all that was to be measured, and for just that: data may change meanwhile."""
        if not isinstance(self.record, EvalReport):
            return False
        return self.scored >= set(self.claim.datasets)

    @property
    def scored(self) -> set[str]:
        """Digests of what its report has a score for; what a black box was given is reported as a whole.

        A record from before digests were noted is taken for what was claimed.
        """
        if not isinstance(self.record, EvalReport):
            return set()
        if not self.record.results:
            return set(self.claim.datasets)
        asked = (
            self.claim.datasets if len(self.claim.datasets) == len(self.record.results) else ("",) * len(self.record.results)
        )
        pairs = zip(self.record.results, asked, strict=True)
        return {result.digest or claimed for result, claimed in pairs if result.score}

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
        if isinstance(self.record, EvalReport) and not self.measured:
            without = [
                f"{result.dataset} has no score: {result.no_score}" for result in self.record.results if not result.score
            ]
            return f"try {self.claim.number}: {'; '.join(without) or 'its data has changed between claim and measurement'}"
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
        """Of the last try that measured all that it was to measure."""
        found = next((one.record for one in reversed(self.tries) if one.measured), None)
        return found if isinstance(found, EvalReport) else None

    @property
    def under_way(self) -> bool:
        return self.last is not None and self.last.alive

    def given_up(self, tries: int) -> bool:
        """Whether the failures since the last `retry` are final, or as many as may be. A try that never began is none."""
        since = [one for one in self.tries if one.claim.number > self.forgiven and not one.measured]
        failed = [one for one in since if one.state in ("skip", "running", "report")]
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


def without_score(known: Collection[Entry]) -> list[Entry]:
    """Those that nobody is at, and something of which has no score, under whatever key of the same checkpoint and engines."""
    scored: dict[str, set[str]] = {}
    for entry in known:
        scored.setdefault(entry.key.place, set()).update(*(one.scored for one in entry.tries))
    idle = [(entry, entry.last) for entry in known if entry.last and not entry.under_way]
    return [
        entry
        for entry, last in idle
        if last.state == "unreadable" or not scored[entry.key.place].issuperset(last.claim.datasets)
    ]


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

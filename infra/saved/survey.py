"""What a trigger finds below its roots, each with what is known of it and what would be done about it; nothing is changed.

A checkpoint is looked up in the ledger by its content, so every byte of it is read once; the digest is noted, and later
triggers read nothing. What is asked of it are the datasets that it has no report for, on such engines: after a change of the
suite those that have changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from infra.datasets import suite_digest
from infra.errors import ConfigError, SnapshotError
from infra.ledger import TTL_S, Entry, Try, entries, live_tries
from infra.model import EvalReport, FleetSpec, LedgerKey, Reevaluation, Suite, Target
from infra.saved.elsewhere import Scores, noted
from infra.saved.identity import Measured, checkpoint_digest, engine_digest
from infra.saved.layouts import Saved, run_of
from infra.saved.scan import scan
from infra.saved.settled import Standing, look
from infra.store import Store

State = Literal["waits", "unread", "to do", "under way", "evaluated", "given up", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint and its state. `why` is for people; what is `to do` has a key, the next try's number and a suite.

    `dead` is a try at its key whose holder is dead, `score` what a target is compared with.
    """

    saved: Saved
    run: str
    standing: Standing
    state: State
    why: str = ""
    key: str = ""
    number: int = 1
    suite: Suite | None = None
    suite_digest: str = ""
    datasets: tuple[str, ...] = ()
    dead: Try | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Of one trigger. `gone` says of a flow run, by its id, that it will never begin: a hint, which may be wrong.

    It knows the flow runs of one Prefect, `server`; those of another one have their time in the queue.
    """

    store: Store
    asked: Reevaluation
    measured: Measured
    engines: str
    gone: Callable[[str], bool] = lambda flow_run: False
    server: str = ""

    @classmethod
    def of(
        cls,
        store: Store,
        asked: Reevaluation,
        suite: Suite,
        fleet: FleetSpec,
        gone: Callable[[str], bool] = lambda flow_run: False,
        server: str = "",
    ) -> Survey:
        """Raises ConfigError for a suite whose data can't be read, or a target that is in none of its datasets."""
        black_box = asked.where.black_box
        measured, target = Measured.of(suite, black_box), asked.order.target
        if target and not measured.whole and target.dataset not in measured.units:
            known = ", ".join(measured.units)
            raise ConfigError(f"target {target.dataset!r} is no dataset of suite {suite.name}; its datasets: {known}")
        engines = engine_digest(fleet, black_box)
        return cls(store=store, asked=asked, measured=measured, engines=engines, gone=gone, server=server)

    def found(self) -> list[Found]:
        """All that is there, in the order in which it is to be evaluated. Nothing is read of what was never digested."""
        clock = time.time()
        by_step = [(saved, look(saved, self.asked.care, clock)) for saved in scan(self.asked.roots, self.asked.pattern)]
        found = [self._first_look(saved, standing) for saved, standing in by_step]
        if self.asked.order.by == "spread":
            return spread(found, self.asked.order.every)
        return found[::-1] if self.asked.order.by == "newest" else found

    def judged(self, found: Found) -> Found:
        """The same with its place in the ledger, for which all of it may have to be read. Raises StoreError."""
        return self._judge(found, read=True) if found.state == "unread" else found

    def _first_look(self, saved: Saved, standing: Standing) -> Found:
        run = self.asked.where.run or run_of(saved.root)
        found = Found(saved=saved, run=run, standing=standing, state="unread")
        if not standing.settled:
            return replace(found, state="waits", why=standing.waits)
        return self._judge(found, read=False)

    def _judge(self, found: Found, *, read: bool) -> Found:
        try:
            digest = checkpoint_digest(self.store, found.saved, found.standing, read=read)
        except SnapshotError as error:
            return replace(found, state="waits", why=str(error))
        except OSError as error:  # a file of it that this user may not read; StoreError is none
            return replace(found, state="waits", why=f"{found.saved.location} can't be read: {error}")
        return found if digest is None else self._in_ledger(found, digest)

    def _in_ledger(self, found: Found, digest: str) -> Found:
        place = LedgerKey.of(digest, self.engines, "").place
        known, elsewhere = entries(self.store, place), noted(self.store, place)
        done = {unit for entry in known.values() for one in entry.tries for unit in one.scored} | elsewhere.keys()
        busy = {unit for entry in known.values() if entry.last and self._is_alive(entry.last) for unit in _asked(entry)}
        score = _score(known, elsewhere, self.measured, self.asked.order.target)
        suite = self.measured.without(done | busy)
        if suite is None:
            pending = bool(busy & set(self.measured.units.values()))
            why = _who(known) if pending else ""
            return replace(found, state="under way" if pending else "evaluated", why=why, score=score)
        asked = suite_digest(suite)
        key = LedgerKey.of(digest, self.engines, asked)
        entry = known.get(key.text, Entry(key=key))
        found = replace(
            found, key=key.text, suite=suite, suite_digest=asked, datasets=self.measured.digests(suite), score=score
        )
        return self._next_try(found, entry)

    def _next_try(self, found: Found, entry: Entry) -> Found:
        last = entry.last
        if last is None:
            return replace(found, state="to do", why=found.standing.fault)
        if entry.unreadable:
            return replace(found, state="unreadable", why=f"`pinpoint retry {found.key}` has it tried again. {last.why}")
        dead = last if last.record is None and last.state not in ("lost", "unreadable") else None
        if entry.given_up(self.asked.care.tries):
            return replace(found, state="given up", why=last.why, dead=dead)
        return replace(found, state="to do", why=last.why, number=last.claim.number + 1, dead=dead)

    def busy(self) -> int:
        """How many re-evaluations wait or run now, whichever trigger, root and suite they are of."""
        return sum(map(self._is_alive, live_tries(self.store)))

    def _is_alive(self, one: Try) -> bool:
        """A flow run that Prefect has ended, or forgotten, before it began will never report."""
        if not one.alive or one.state != "queued" or one.age <= TTL_S:
            return one.alive
        known_here = one.server in ("", self.server)
        return not (known_here and self.gone(one.flow_run))


def spread(by_step: Sequence[Found], every: int) -> list[Found]:
    """Every so manieth of each root, counted from those that have been asked, else from the earliest.

    So a root that grows, or whose earliest are deleted, has the same ones at every trigger.
    """
    roots: dict[str, list[Found]] = {}
    for one in by_step:
        roots.setdefault(one.saved.root, []).append(one)
    chosen = {one.saved.location for group in roots.values() for one in _every(group, every)}
    return [one for one in by_step if one.saved.location in chosen]


def _every(group: Sequence[Found], every: int) -> Iterator[Found]:
    asked = [n for n, one in enumerate(group) if one.number > 1 or one.state not in ("waits", "unread", "to do")]
    counted = asked[0] % every if asked else 0
    for n, one in enumerate(group):
        if n in asked or n - counted in (0, every):
            counted = n
            yield one


def _asked(entry: Entry) -> tuple[str, ...]:
    return entry.last.claim.datasets if entry.last else ()


def _who(known: dict[str, Entry]) -> str:
    alive = [entry.last for entry in known.values() if entry.last and entry.last.alive]
    return "; ".join(f"{one.state} since {one.claim.at}, try {one.claim.number} at {one.claim.key}" for one in alive)


def _score(known: dict[str, Entry], elsewhere: dict[str, Scores], measured: Measured, target: Target | None) -> float | None:
    """The target's score in the report that this very dataset has at this checkpoint."""
    if target is None:
        return None
    unit = next(iter(measured.units.values())) if measured.whole else measured.units[target.dataset]
    tries = [one for entry in known.values() for one in entry.tries]
    reports = [(one.claim, one.record) for one in tries if isinstance(one.record, EvalReport)]
    if measured.whole:
        scores = [report.metrics.get(target.dataset) for claim, report in reports if unit in claim.datasets]
    else:
        results = [result for _, report in reports for result in report.results]
        scores = [result.score.mean for result in results if result.score and result.digest == unit]
    noted_score = elsewhere.get(unit, {}).get(target.dataset)
    return next((score for score in (*scores, noted_score) if score is not None), None)

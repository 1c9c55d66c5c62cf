"""Which two reports a command line means; what is not there, or was not asked the same, is refused with what there is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from infra.comparing import asked_alike
from infra.errors import ConfigError, PointSkipped
from infra.model import EvalPoint, EvalReport, SkippedPoint
from infra.records import history, runs
from infra.statistics import chance_note
from infra.store import Store

PLACE = re.compile(r"(?P<run>[^@:]+)@(?P<step>[0-9]{1,18})(?::(?P<attempt>[0-9]{1,18}))?")
Record = EvalReport | SkippedPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A point as a command line names it: RUN@STEP, each suite's newest attempt there, or RUN@STEP:ATTEMPT."""

    run: str
    step: int
    attempt: int | None

    @classmethod
    def of(cls, text: str) -> Place:
        found = PLACE.fullmatch(text)
        if found is None:
            raise ConfigError(f"{text!r} names no point: write RUN@STEP, for example my-run@40, or RUN@STEP:ATTEMPT")
        attempt = int(found["attempt"]) if found["attempt"] else None
        point = EvalPoint(run=found["run"], step=int(found["step"]), attempt=attempt or 0)
        return cls(run=point.run, step=point.step, attempt=attempt)

    def __str__(self) -> str:
        return f"{self.run}@{self.step}" + ("" if self.attempt is None else f":{self.attempt}")

    def holds(self, point: EvalPoint) -> bool:
        return point.step == self.step and self.attempt in (None, point.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two reports of one suite, and what a reader has to know of them beside their numbers."""

    first: EvalReport
    second: EvalReport
    datasets: tuple[str, ...]
    notes: tuple[str, ...]


def pair_of(
    store: Store,
    first: Place,
    second: Place,
    suite: str | None,
    dataset: str | None,
    *,
    across: bool = False,
    gate: bool = False,
) -> Pair:
    """What is at both places under a suite. A `gate` takes no suite in the place of one that the second point skipped.

    Raises ConfigError for points that are not there, or were not asked the same, PointSkipped for one without a number.
    """
    histories = {run: history(store, run) for run in dict.fromkeys((first.run, second.run))}
    at_first, at_second = (_newest(store, place, histories[place.run]) for place in (first, second))
    if gate:
        _refuse_skips(second, at_second if suite is None else {name: at_second[name] for name in {suite} & at_second.keys()})
    name = _chosen_suite(at_first, at_second, suite)
    one, other = _measured(first, at_first[name]), _measured(second, at_second[name])
    if one.point == other.point:
        raise ConfigError(f"{one.point.name} is one point: name two")
    known = [record for records in histories.values() for record in records if isinstance(record, EvalReport)]
    notes = []
    if not asked_alike(one, other):
        what = f"suite {name} changed between the points (digests {one.suite_digest[:8]} and {other.suite_digest[:8]})"
        if not across:
            raise ConfigError(f"{what}: {_remedy(one, other, known, gate=gate)}")
        notes.append(f"{what}: prompts are equal, how they were asked and graded may not be")
    if one.snapshot_digest is not None and one.snapshot_digest == other.snapshot_digest:
        notes.append("both points have the same weights: whatever differs is chance")
    if elsewhere := _datasets_elsewhere(other, known):
        notes.append(f"not looked at, as only another attempt at step {other.point.step} has them: {', '.join(elsewhere)}")
    compared = sum(asked_alike(record, one) or asked_alike(record, other) for record in known)
    notes.append(chance_note(compared, len(one.results)))
    return Pair(first=one, second=other, datasets=_datasets(one, other, dataset), notes=tuple(filter(None, notes)))


def _newest(store: Store, place: Place, records: list[Record]) -> dict[str, Record]:
    """The records at a place by suite, of the newest attempt unless one is named: a skip hides what was measured before."""
    if not records:
        raise ConfigError(f"no run {place.run!r} in {store.url}; runs there: {', '.join(runs(store)) or 'none'}")
    here = [record for record in records if place.holds(record.point)]
    if not here:
        known = sorted({(record.point.step, record.point.attempt) for record in records})
        listed = ", ".join(f"{step}:{attempt}" if attempt else str(step) for step, attempt in known)
        raise ConfigError(f"run {place.run} has no point at step {str(place).rpartition('@')[2]}; its points: {listed}")
    return {record.suite: record for record in here}  # by attempt: the newest stays


def _refuse_skips(place: Place, records: dict[str, Record]) -> None:
    """Raises PointSkipped if any suite was skipped: nobody said that the others are enough."""
    measured = sorted(suite for suite, record in records.items() if isinstance(record, EvalReport))
    for record in records.values():
        if isinstance(record, SkippedPoint):
            raise _skipped(place, record, f"--suite looks at one alone: {', '.join(measured)}" if measured else "")


def _skipped(place: Place, record: SkippedPoint, remedy: str = "") -> PointSkipped:
    named = f"{place.run}@{place.step}" + (f":{record.point.attempt}" if record.point.attempt else "")
    return PointSkipped(named, suite=record.suite, reason=record.reason, message=record.message, remedy=remedy)


def _measured(place: Place, record: Record) -> EvalReport:
    if isinstance(record, SkippedPoint):
        raise _skipped(place, record)
    return record


def _chosen_suite(first: dict[str, Record], second: dict[str, Record], asked: str | None) -> str:
    """Of what is at both: the one that was asked for, or the only one, or the only one that was measured at both."""
    both = sorted(first.keys() & second.keys())
    if asked is not None:
        if asked not in both:
            raise ConfigError(f"the points have no suite {asked!r} in common; those in common: {', '.join(both) or 'none'}")
        return asked
    if not both:
        raise ConfigError(f"the points have no suite in common: {', '.join(sorted(first))} and {', '.join(sorted(second))}")
    measured = [name for name in both if isinstance(first[name], EvalReport) and isinstance(second[name], EvalReport)]
    if len(measured) > 1:
        raise ConfigError(f"the points have several suites in common, choose one with --suite: {', '.join(both)}")
    return (measured or both)[0]


def _remedy(one: EvalReport, other: EvalReport, known: list[EvalReport], *, gate: bool) -> str:
    """How to compare all the same: at attempts that were asked the same; a gate has no other way."""
    mine, theirs = (
        {record.suite_digest: record for record in known if _beside(record, point) and record.suite == one.suite}
        for point in (one.point, other.point)
    )
    both = mine.keys() & theirs.keys()
    if both:
        digest = max(both, key=lambda digest: (theirs[digest].point.attempt, mine[digest].point.attempt))
        pair = " and ".join(f"{p.run}@{p.step}:{p.attempt}" for p in (mine[digest].point, theirs[digest].point))
        return f"{pair} were asked the same ({digest[:8]}): name these attempts"
    if gate:
        return f"evaluate {one.point.name} under the suite as it is now, then gate"
    return "--across-suites compares the prompts that are still equal"


def _datasets_elsewhere(report: EvalReport, known: list[EvalReport]) -> list[str]:
    """What other attempts have under the suite: a re-evaluation reports only the datasets that it asked."""
    here = [record for record in known if _beside(record, report.point) and record.suite == report.suite]
    return sorted({found.dataset for record in here for found in record.results} - {found.dataset for found in report.results})


def _beside(record: EvalReport, point: EvalPoint) -> bool:
    return (record.point.run, record.point.step) == (point.run, point.step)


def _datasets(first: EvalReport, second: EvalReport, asked: str | None) -> tuple[str, ...]:
    names = {result.dataset for result in second.results}
    common = tuple(result.dataset for result in first.results if result.dataset in names)
    if not common:
        raise ConfigError(f"{first.point.name} and {second.point.name} have no dataset with samples in common")
    if asked is not None and asked not in common:
        raise ConfigError(f"the points have no dataset {asked!r} in common; those in common: {', '.join(common)}")
    return common if asked is None else (asked,)

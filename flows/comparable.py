"""Which two reports a command line means; what is not there, or was not asked the same, is refused with what there is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from infra.errors import ConfigError
from infra.model import EvalReport, SkippedPoint
from infra.records import history, runs
from infra.statistics import chance_note
from infra.store import Store

PLACE = re.compile(r"(?P<run>[^@:]+)@(?P<step>\d+)(?::(?P<attempt>\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A point as a command line names it: RUN@STEP, the newest attempt there, or RUN@STEP:ATTEMPT."""

    run: str
    step: int
    attempt: int | None

    @classmethod
    def of(cls, text: str) -> Place:
        found = PLACE.fullmatch(text)
        if found is None:
            raise ConfigError(f"{text!r} names no point: write RUN@STEP, for example my-run@40, or RUN@STEP:ATTEMPT")
        attempt = found["attempt"]
        return cls(run=found["run"], step=int(found["step"]), attempt=int(attempt) if attempt else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two reports of one suite, and what a reader has to know of them beside their numbers."""

    first: EvalReport
    second: EvalReport
    datasets: tuple[str, ...]
    notes: tuple[str, ...]


def pair_of(store: Store, first: Place, second: Place, suite: str | None, dataset: str | None, across: bool) -> Pair:
    """Raises ConfigError for points that are not there, have no number, or were not asked the same."""
    at_first, at_second = _reports(store, first), _reports(store, second)
    name = _common_suite(at_first, at_second, suite)
    one, other = at_first[name], at_second[name]
    if one.point == other.point:
        raise ConfigError(f"{one.point.name} is one point: name two")
    notes = []
    if one.suite_digest != other.suite_digest:
        what = f"suite {name} changed between the points (digests {one.suite_digest[:8]} and {other.suite_digest[:8]})"
        if not across:
            raise ConfigError(f"{what}: --across-suites compares the prompts that are still equal")
        notes.append(f"{what}: prompts are equal, how they were asked and graded may not be")
    if one.snapshot_digest is not None and one.snapshot_digest == other.snapshot_digest:
        notes.append("both points have the same weights: whatever differs is chance")
    notes.append(chance_note(_points(store, one, other), len(one.results)))
    return Pair(first=one, second=other, datasets=_datasets(one, other, dataset), notes=tuple(filter(None, notes)))


def _reports(store: Store, place: Place) -> dict[str, EvalReport]:
    """The reports at a place by suite, of the newest attempt unless one is named."""
    records = history(store, place.run)
    if not records:
        raise ConfigError(f"no run {place.run!r} in {store.url}; runs there: {', '.join(runs(store)) or 'none'}")
    here = [record for record in records if record.point.step == place.step]
    if place.attempt is not None:
        here = [record for record in here if record.point.attempt == place.attempt]
    if not here:
        known = sorted({(record.point.step, record.point.attempt) for record in records})
        listed = ", ".join(f"{step}:{attempt}" if attempt else str(step) for step, attempt in known)
        where = f"{place.step}" if place.attempt is None else f"{place.step}:{place.attempt}"
        raise ConfigError(f"run {place.run} has no point at step {where}; its points: {listed}")
    reports = [record for record in here if isinstance(record, EvalReport)]
    for record in here:
        if isinstance(record, SkippedPoint) and not reports:
            raise ConfigError(f"{record.point.name} has no number, it was skipped, {record.reason}: {record.message}")
    return {report.suite: report for report in reports}  # by attempt: the newest stays


def _common_suite(first: dict[str, EvalReport], second: dict[str, EvalReport], asked: str | None) -> str:
    common = sorted(first.keys() & second.keys())
    if asked is not None and asked not in common:
        raise ConfigError(f"the points have no suite {asked!r} in common; those in common: {', '.join(common) or 'none'}")
    if asked is not None:
        return asked
    if not common:
        raise ConfigError(f"the points have no suite in common: {', '.join(sorted(first))} and {', '.join(sorted(second))}")
    if len(common) > 1:
        raise ConfigError(f"the points have several suites in common, choose one with --suite: {', '.join(common)}")
    return common[0]


def _datasets(first: EvalReport, second: EvalReport, asked: str | None) -> tuple[str, ...]:
    names = {result.dataset for result in second.results}
    common = tuple(result.dataset for result in first.results if result.dataset in names)
    if not common:
        raise ConfigError(f"{first.point.name} and {second.point.name} have no dataset with samples in common")
    if asked is not None and asked not in common:
        raise ConfigError(f"the points have no dataset {asked!r} in common; those in common: {', '.join(common)}")
    return common if asked is None else (asked,)


def _points(store: Store, *reports: EvalReport) -> int:
    """Measured points of both runs that a reader could compare under these suites."""
    digests = {report.suite_digest for report in reports}
    records = [record for run in {report.point.run for report in reports} for record in history(store, run)]
    return sum(isinstance(record, EvalReport) and record.suite_digest in digests for record in records)

"""What of a run is drawn, as plain rows: each value at its step with its interval, and each place that has none with why.

Names, reasons and texts are untrusted: they stand in values only, as short lines without control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from infra.model import DatasetResult, EvalReport, SkippedPoint
from infra.presentation.texts import plain
from infra.wording import NONE, comparison_text, score_text

Record = EvalReport | SkippedPoint
Mark = dict[str, Any]
NO_SCORE = "no score"
STAGING = "staging (training waits)"
MOST_REASONS = 8
OTHER = "other reasons"
ONE_EACH = "one point each"


def value_marks(
    records: Iterable[Record], names: Mapping[tuple[str, str], str], everything: Iterable[Record] | None = None
) -> list[Mark]:
    """One mark a value: a dataset's score, or a black box's metric, which has no interval.

    `line` is the attempt, as whose points it is joined with others; what was measured point by point, each as an attempt of
    its own as re-evaluations are, is one line. `everything` is what `records` are a part of.
    """
    reports = [record for record in records if isinstance(record, EvalReport)]
    steps: dict[tuple[str, str], dict[int, set[int]]] = {}
    for report in reports if everything is None else everything:
        if not isinstance(report, EvalReport):
            continue
        steps.setdefault((report.point.run, report.suite), {}).setdefault(report.point.attempt, set()).add(report.point.step)
    single = {of: {attempt for attempt, its in attempts.items() if len(its) == 1} for of, attempts in steps.items()}
    return [
        mark | {"line": ONE_EACH if report.point.attempt in alone and len(alone) > 1 else str(report.point.attempt)}
        for report in reports
        for alone in [single[report.point.run, report.suite]]
        for mark in _values_of(report, names)
    ]


def lines_of(marks: Iterable[Mark]) -> list[str]:
    """The attempts as which values are joined, in order."""
    return sorted({str(mark["line"]) for mark in marks}, key=lambda line: (line == ONE_EACH, len(line), line))


def series_names(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """What each (suite, dataset or metric) is called, in the order of their first point; no two are called the same."""
    reports = [record for record in records if isinstance(record, EvalReport)]
    several = len({report.suite for report in reports}) > 1
    made: dict[tuple[str, str], str] = {}
    for report in reports:
        for name in (*(result.dataset for result in report.results), *report.metrics):
            if (report.suite, name) not in made:
                shown = plain(f"{name} · {report.suite}" if several else name) or "(no name)"
                made[report.suite, name] = _unlike(shown, set(made.values()))
    return made


def _unlike(name: str, others: set[str]) -> str:
    return next(made for made in chain([name], (f"{name} ({number})" for number in count(2))) if made not in others)


def gap_marks(records: Iterable[Record]) -> list[Mark]:
    """One mark a skipped point, or a dataset that could not be scored; reasons past the first few share a row."""
    found = [mark for record in records for mark in _gaps_of(record)]
    reasons = list(dict.fromkeys(mark["reason"] for mark in found))
    kept = set(reasons) if len(reasons) <= MOST_REASONS else set(reasons[: MOST_REASONS - 1])
    return [mark | {"row": mark["reason"] if mark["reason"] in kept else OTHER} for mark in found]


def phase_marks(records: Iterable[EvalReport]) -> list[Mark]:
    """One mark a phase of a point, in the order in which they followed each other."""
    records = list(records)
    several = len({record.suite for record in records}) > 1
    made = []
    for record in records:
        attempt = f" (attempt {record.point.attempt})" if record.point.attempt else ""
        point = f"{record.point.step}{attempt}{f' · {plain(record.suite)}' if several else ''}"
        spent = {STAGING: record.export_time_seconds, **{plain(name): seconds for name, seconds in record.phases.items()}}
        for order, (phase, seconds) in enumerate(spent.items()):
            made.append(_place(record) | {"point": point, "phase": phase, "order": order, "seconds": round(seconds, 3)})
    return made


def _values_of(report: EvalReport, names: Mapping[tuple[str, str], str]) -> Iterator[Mark]:
    for result in report.results:
        if result.score is not None and (report.suite, result.dataset) in names:
            yield _place(report) | {
                "series": names[report.suite, result.dataset],
                "value": result.score.mean,
                "low": result.score.low,
                "high": result.score.high,
                "text": score_text(result),
                **_beside(report, result),
            }
    for name, value in report.metrics.items():
        if (report.suite, name) in names:
            yield _place(report) | {"series": names[report.suite, name], "value": value, "text": f"{value:g}"}


def _place(record: Record) -> Mark:
    point = record.point
    known = {"run": point.run, "step": point.step, "attempt": str(point.attempt), "suite": plain(record.suite)}
    return known | {"missed": plain(", ".join(map(str, point.missed)))} if point.missed else known


def _beside(report: EvalReport, result: DatasetResult) -> Mark:
    previous = [made for made in report.comparisons if (made.dataset, made.against) == (result.dataset, "previous")]
    return {
        "asked": f"{result.n_prompts} prompts, {result.n_samples} samples",
        "previous": comparison_text(previous[0]) if previous else NONE,
        "lag": report.lag_steps,
        "weights": plain(report.weight_version),
    }


def _gaps_of(record: Record) -> Sequence[Mark]:
    if isinstance(record, SkippedPoint):
        why = {"reason": plain(record.reason), "why": plain(record.message), "what": "skipped"}
        return [_place(record) | why]
    return [
        _place(record) | {"reason": NO_SCORE, "why": plain(score_text(result)), "what": plain(result.dataset)}
        for result in record.results
        if result.score is None
    ]

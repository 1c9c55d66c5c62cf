"""What the page says of a run, as plain values in the page's order; it is bounded, and what is left out is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.model import EvalReport, SkippedPoint
from infra.presentation import plain
from infra.report_page.details import Detail, Record, anchor_of, details_of, place_of
from infra.store import Store
from infra.wording import NONE, comparison_text, score_text

MOST_ROWS, MOST_DETAILED = 2_000, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A score, and what it shows beside the previous point."""

    score: str
    delta: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of the table of points; `cells` go by the table's names of datasets and metrics."""

    anchor: str
    place: str
    suite: str
    cells: Mapping[str, Cell]
    lag: str
    staging: str
    finished: str
    skipped: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    run: str
    names: Sequence[str]
    lines: Sequence[Line]
    details: Sequence[Detail]
    points: int
    skips: int
    suites: Sequence[str]
    newest: str


def view_of(store: Store, run: str, records: Sequence[Record], each: int) -> View:
    """`records` by step; up to `each` samples of a kind, dataset and point, newest points first, until there are enough."""
    reports = [record for record in records if isinstance(record, EvalReport)]
    names = dict.fromkeys(name for report in reports for name in (*(r.dataset for r in report.results), *report.metrics))
    return View(
        run=run,
        names=list(names),
        lines=[_line(record) for record in records[-MOST_ROWS:]],
        details=details_of(store, records[-MOST_DETAILED:][::-1], each),
        points=len(records),
        skips=len(records) - len(reports),
        suites=sorted({record.suite for record in records}),
        newest=max((record.finished_at for record in records), default=""),
    )


def _line(record: Record) -> Line:
    cells: dict[str, Cell] = {}
    if isinstance(record, EvalReport):
        cells |= {name: Cell(score=f"{value:g}") for name, value in record.metrics.items()}
        cells |= {result.dataset: Cell(score=score_text(result)) for result in record.results}
        for made in record.comparisons:
            if made.against == "previous" and made.difference and made.dataset in cells:
                verdict = made.difference.verdict
                delta = comparison_text(made).removesuffix(verdict).strip()
                cells[made.dataset] = Cell(score=cells[made.dataset].score, delta=delta, verdict=verdict)
    return Line(
        anchor=anchor_of(record),
        place=place_of(record),
        suite=record.suite,
        cells=cells,
        lag=str(record.lag_steps) if isinstance(record, EvalReport) else NONE,
        staging=f"{record.export_time_seconds:.3f}",
        finished=record.finished_at,
        skipped=plain(f"{record.reason}: {record.message}") if isinstance(record, SkippedPoint) else "",
    )

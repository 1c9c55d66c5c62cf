"""What people read in the terminal: curves as tables, errors as one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.model import EvalReport, SkippedPoint
from infra.presentation import history_rows, plain, score_rows

_LONG = ("skipped", "place", "state")
_TEXT = (*_LONG, "dataset", "metric")
_NARROW = ("metric", "value", "dataset", "score [95% interval]", "prompts", "samples", "coverage", "truncated")


def curve(run: str, records: Sequence[EvalReport | SkippedPoint]) -> Table:
    """One row a point, by step."""
    return _table(f"Evaluation history of {run}", history_rows(records))


def scores(report: EvalReport) -> Table:
    """One row a dataset, or a black box's metric."""
    rows = [{key: cell for key, cell in row.items() if key in _NARROW} for row in score_rows(report)]
    return _table(f"{report.point.name}, weights {report.weight_version}", rows)


def places(rows: Sequence[dict[str, str]]) -> Table:
    """One row a snapshot or staged model that was looked at."""
    return _table("What Pinpoint made", rows)


def error_line(console: Console, message: str) -> None:
    console.print(Text("pinpoint: ", style="bold red") + Text(plain_long(message)), soft_wrap=True)


def plain_long(message: str) -> str:
    return " ".join(message.split())


def _table(title: str, rows: Sequence[dict[str, str]] | Sequence[dict[str, str | int]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for column in rows[0] if rows else ():
        justify = "left" if column in _TEXT else "right"
        table.add_column(column, no_wrap=column not in _LONG, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(plain(str(cell))) for cell in row.values()))
    return table

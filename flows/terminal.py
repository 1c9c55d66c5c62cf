"""What people read in the terminal: curves as tables, errors as one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.model import EvalReport, SkippedPoint
from infra.presentation import history_rows, plain, score_rows


def curve(run: str, records: Sequence[EvalReport | SkippedPoint]) -> Table:
    """One row a point, by step."""
    return _table(f"Evaluation history of {run}", history_rows(records))


def scores(report: EvalReport) -> Table:
    """One row a dataset."""
    return _table(report.point.name, score_rows(report))


def error_line(console: Console, message: str) -> None:
    console.print(Text("pinpoint: ", style="bold red") + Text(plain_long(message)), soft_wrap=True)


def plain_long(message: str) -> str:
    return " ".join(message.split())


def _table(title: str, rows: Sequence[dict[str, str]] | Sequence[dict[str, str | int]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in rows[0] if rows else ():
        table.add_column(column, overflow="fold", justify="left" if column == "skipped" else "right")
    for row in rows:
        table.add_row(*(Text(plain(str(cell))) for cell in row.values()))
    return table

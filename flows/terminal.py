"""What people read in the terminal: curves as tables, errors as one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.model import EvalReport, FleetStatus, SkippedPoint
from infra.presentation import history_rows, plain, score_rows

Records = Sequence[EvalReport | SkippedPoint]
FOLDED = ("skipped", "place", "state", "weights", "why", "last score", "score")
_TEXT = (*FOLDED, "dataset", "metric", "engine", "node", "run", "curve")
_NARROW = ("metric", "value", "dataset", "score [95% interval]", "prompts", "samples", "coverage", "truncated")


def curve(run: str, records: Records) -> Table:
    """One row a point, by step."""
    return table(f"Evaluation history of {run}", history_rows(records))


def scores(report: EvalReport) -> Table:
    """One row a dataset, or a black box's metric."""
    rows = [{key: cell for key, cell in row.items() if key in _NARROW} for row in score_rows(report)]
    return table(f"{report.point.name}, weights {report.weight_version}", rows)


def places(rows: Sequence[dict[str, str]]) -> Table:
    """One row a snapshot or staged model that was looked at."""
    return table("What Pinpoint made", rows)


def fleet_line(fleet: FleetStatus) -> str:
    """Who has the fleet, or when it ends."""
    if fleet.holder:
        standing = f"held by {plain(fleet.holder)}, for {fleet.lease_left_s:.0f} s unless it renews"
    elif fleet.ends_in_s is not None:
        standing = f"free, ends in {max(0.0, fleet.ends_in_s):.0f} s unless somebody asks for it"
    else:
        standing = "free, without engines"
    gpus = f", {fleet.num_gpus} GPUs" if fleet.num_gpus else ""
    return f"Fleet {fleet.name} ({fleet.engine or 'no'} engines{gpus}): {standing}"


def engines(fleet: FleetStatus) -> Table:
    """One row an engine."""
    rows = [
        {"engine": one.name, "state": one.state, "weights": one.weight_version, "node": one.node, "pid": str(one.pid or "–")}
        for one in fleet.engines
    ]
    return table(None, rows)


def compared(title: str, rows: Sequence[dict[str, str]]) -> Table:
    """One row a dataset, at two points."""
    return table(title, rows)


def ledger_table(title: str, rows: Sequence[dict[str, str]]) -> Table:
    """One row a saved checkpoint, or a key of the ledger."""
    return table(title, rows)


def error_line(console: Console, message: str) -> None:
    console.print(Text("pinpoint: ", style="bold red") + Text(plain_long(message)), soft_wrap=True)


def plain_long(message: str) -> str:
    return " ".join(message.split())


def table(title: str | None, rows: Sequence[dict[str, str]] | Sequence[dict[str, str | int]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for column in rows[0] if rows else ():
        justify = "left" if column in _TEXT else "right"
        table.add_column(column, no_wrap=column not in FOLDED, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(plain(str(cell))) for cell in row.values()))
    return table

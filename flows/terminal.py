"""What people read in the terminal: tables that fit it, in which no number is cut, and errors as one line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from infra.model import EvalReport, FleetStatus, SkippedPoint
from infra.presentation import plain, score_rows
from infra.wording import NONE

Records = Sequence[EvalReport | SkippedPoint]
FOLDED = ("skipped", "place", "state", "weights", "why", "last score", "score")
_TEXT = (*FOLDED, "dataset", "datasets", "metric", "engine", "node", "run", "curve", "suite", "key", "what", "is", "shows")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,e+-]*(?: \[[^\]]{1,40}\])?")
PIPED_WIDTH = 500  # of what nobody's terminal folds
FOLDED_WIDTH = 30  # in so many columns there is room for a text that may be folded
LEAST_WIDTH = 3  # of a text that has to be folded, in the narrowest terminals
_NARROW = ("metric", "value", "dataset", "score [95% interval]", "prompts", "samples", "coverage", "truncated")


def scores(report: EvalReport, console: Console) -> Table:
    """One row a dataset, or a black box's metric."""
    rows = [{key: str(cell) for key, cell in row.items() if key in _NARROW} for row in score_rows(report)]
    variants = [rows] if report.metrics else [rows, stacked(rows)]
    return fitting(console, f"{report.point.name}, weights {report.weight_version}", *variants)


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


def error_line(console: Console, message: str) -> None:
    console.print(Text("pinpoint: ", style="bold red") + Text(plain_long(message)), soft_wrap=True)


def plain_long(message: str) -> str:
    return " ".join(message.split())


def table(
    title: str | None,
    rows: Sequence[dict[str, str]] | Sequence[dict[str, str | int]],
    widths: Mapping[str, int] | None = None,
) -> Table:
    """One row each; a column that has one of `widths` is folded to it."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for column in rows[0] if rows else ():
        justify: JustifyMethod = "left" if column in _TEXT else "right"
        width, whole = (widths or {}).get(column), column not in FOLDED and column not in (widths or {})
        table.add_column(column, no_wrap=whole, overflow="fold", justify=justify, width=width)
    for row in rows:
        table.add_row(*(Text(plain(str(cell))) for cell in row.values()))
    return table


def reading_console() -> Console:
    """As wide as the terminal; what is piped or redirected is not folded."""
    made = Console()
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPED_WIDTH
    return made


def fitting(
    console: Console,
    title: str | None,
    *variants: Sequence[dict[str, str]],
    short_title: str | None = None,
    rooms: Sequence[int] = (FOLDED_WIDTH,),
) -> Table:
    """The first variant that the terminal is wide enough for, else the last, folded until it fits. No number is cut.

    Texts may be folded, to one of `rooms` after the other; `short_title` is that of all variants but the first.
    """
    shown = list(zip(variants, [title, *[short_title or title] * (len(variants) - 1)], strict=True))
    for room in rooms:
        for rows, titled in shown[:-1]:
            widths = {column: min(_natural(column, rows), room) for column in _columns(rows) if column in FOLDED}
            if _measured(console, table(None, rows, widths)) <= console.width:
                return table(titled, rows)
    rows, titled = shown[-1]
    return table(titled, rows, _folded(console, rows))


def stacked(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The same for a terminal in which no row fits: a line each cell that says something, below the first one's name."""
    made = []
    for row in rows:
        (column, name), *cells = row.items()
        told = [(what, cell) for what, cell in cells if cell not in ("", NONE)]
        made += [{column: "" if n else name, "what": what, "is": cell} for n, (what, cell) in enumerate(told)]
    return made


def _columns(rows: Sequence[dict[str, str]]) -> list[str]:
    return list(rows[0]) if rows else []


def _folded(console: Console, rows: Sequence[dict[str, str]]) -> dict[str, int]:
    """Widths of the columns of texts, of which the widest is narrowed as long as the table is too wide."""
    texts = [column for column in _columns(rows) if column in _TEXT and column != "curve"]
    widths = {column: min(_natural(column, rows), console.width) for column in texts}
    least = {column: min(widths[column], _least(column, rows)) for column in texts}
    over = _measured(console, table(None, rows, widths)) - console.width
    while over > 0 and (wide := [column for column in texts if widths[column] > least[column]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
        over -= 1
    return widths


def _measured(console: Console, made: Table) -> int:
    return console.measure(made, options=console.options.update(max_width=PIPED_WIDTH)).maximum


def _natural(column: str, rows: Sequence[dict[str, str]]) -> int:
    return max(cell_len(plain(text)) for text in (column, *(row[column] for row in rows)))


def _least(column: str, rows: Sequence[dict[str, str]]) -> int:
    """As wide as the longest number in the column, with its interval."""
    longest = max((cell_len(found) for row in rows for found in _NUMBER.findall(row[column])), default=0)
    return max(LEAST_WIDTH, longest)

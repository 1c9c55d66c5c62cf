"""History as tables that fit the terminal: no number is cut, and what is piped is not folded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from flows.terminal import FOLDED, Records, table
from infra.model import EvalReport, SkippedPoint
from infra.presentation import history_rows, plain
from infra.sparkline import GAP, sparkline
from infra.wording import NONE, score_text

PIPED_WIDTH = 500  # of what nobody's terminal folds
MOST_SCORES = 3
FOLDED_WIDTH = 30  # in so many columns there is room for a text that may be folded


def reading_console() -> Console:
    """As wide as the terminal; what is piped or redirected is not folded."""
    made = Console()
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPED_WIDTH
    return made


def points(run: str, records: Records, console: Console) -> Table:
    """One row a point where that fits; else without lag and staging, else one row a dataset of a point."""
    rows = history_rows(records)
    dropped = {"lag", "export s"} | (set() if any(row["skipped"] for row in rows) else {"skipped"})
    narrow = [{key: cell for key, cell in row.items() if key not in dropped} for row in rows]
    single = [row for record in records for row in _by_dataset(record)]
    return _fitting(console, f"Evaluation history of {run}", rows, narrow, single)


def _by_dataset(record: EvalReport | SkippedPoint) -> Iterator[dict[str, str]]:
    step = f"{record.point.step}" + (f":{record.point.attempt}" if record.point.attempt else "")
    if isinstance(record, SkippedPoint):
        yield {"step": step, "dataset": NONE, "score": f"skipped, {record.reason}: {record.message}"}
        return
    scores = {result.dataset: score_text(result) for result in record.results}
    for name, score in {**scores, **{name: f"{value:g}" for name, value in record.metrics.items()}}.items():
        yield {"step": step, "dataset": name, "score": score}


def curves(records: Records, console: Console) -> Table | None:
    """One row a dataset or metric: its values from the oldest point to the newest; None without any value."""
    series = _series(records)
    if not series:
        return None
    several = len({suite for suite, _ in series}) > 1
    names = [f"{name} · {suite}" if several else name for suite, name in series]
    room = max(8, console.width - max(len(plain(name)) for name in names) - len("   0.0000") * 2 - 8)
    rows = []
    for name, values in zip(names, series.values(), strict=True):
        known = [value for value in values if value is not None]
        rows.append({"dataset": name, "curve": sparkline(values, room), "first": _short(known[0]), "last": _short(known[-1])})
    gaps = f" ({GAP}: no number)" if any(None in values for values in series.values()) else ""
    narrow = [{key: row[key] for key in ("dataset", "curve")} for row in rows]
    return _fitting(console, f"Curves{gaps}", rows, narrow)


def _series(records: Records) -> dict[tuple[str, str], list[float | None]]:
    """By suite and dataset or metric: a place for each step of the suite, with what its newest attempt measured."""
    placed = sorted(records, key=lambda record: (record.point.step, isinstance(record, EvalReport), record.point.attempt))
    newest = {(record.suite, record.point.step): record for record in placed}
    made: dict[tuple[str, str], list[float | None]] = {
        (record.suite, name): [] for record in newest.values() for name in _values(record)
    }
    for (suite, name), values in made.items():
        values += [_values(record).get(name) for record in newest.values() if record.suite == suite]
    return made


def _values(record: EvalReport | SkippedPoint) -> dict[str, float]:
    if isinstance(record, SkippedPoint):
        return {}
    return record.metrics | {result.dataset: result.score.mean for result in record.results if result.score}


def _short(value: float) -> str:
    return f"{value:.3f}" if -1 <= value <= 1 else f"{value:g}"


def runs_table(known: Mapping[str, Records | str], console: Console) -> Table:
    """One row a run, the one with the newest record first; a text in the place of records says why there are none."""
    newest = sorted(known, key=lambda run: (_last_time(known[run]), run), reverse=True)
    wide, narrow, narrower = ([_run_row(run, known[run], most) for run in newest] for most in (MOST_SCORES, 1, 0))
    return _fitting(console, None, wide, narrow, narrower, [{"run": row["run"], "points": row["points"]} for row in narrower])


def _run_row(run: str, records: Records | str, most: int) -> dict[str, str]:
    numbers, score = dict.fromkeys(("points", "skipped", "last step"), NONE), NONE
    if isinstance(records, str):
        numbers["points"], score = "unreadable", records
    else:
        last = [record for record in records if isinstance(record, EvalReport)][-1:]
        scores = [f"{name} {_short(value)}" for record in last for name, value in _values(record).items()]
        score = ", ".join([*scores[:most], *[f"and {len(scores) - most} more"] * (len(scores) > most)]) or NONE
        skipped = sum(isinstance(record, SkippedPoint) for record in records)
        numbers = {"points": str(len(records)), "skipped": str(skipped), "last step": str(records[-1].point.step)}
    row = {"run": run, **numbers, "newest record": _last_time(records)[:16].replace("T", " ")}
    return row | {"last score": score} if most else row


def _last_time(records: Records | str) -> str:
    return "" if isinstance(records, str) else max(record.finished_at for record in records)


def _fitting(console: Console, title: str | None, *variants: Sequence[dict[str, str]]) -> Table:
    """The first variant that the terminal is wide enough for, or the last."""
    unbound = console.options.update(max_width=PIPED_WIDTH)
    for rows in variants:
        folded = [{key: cell[:FOLDED_WIDTH] if key in FOLDED else cell for key, cell in row.items()} for row in rows]
        if console.measure(table(None, folded), options=unbound).maximum <= console.width:
            return table(title, rows)
    return table(title, variants[-1])

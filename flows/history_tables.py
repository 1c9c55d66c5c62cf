"""History as tables that fit the terminal: no number is cut, and what is piped is not folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from flows.terminal import FOLDED_WIDTH, Records, fitting
from infra.model import EvalReport, SkippedPoint
from infra.presentation import history_rows, plain
from infra.sparkline import GAP, sparkline
from infra.wording import NONE, score_text

MOST_SCORES = 3


def points(run: str, records: Records, console: Console) -> Table:
    """One row a point where that fits; else without lag and staging, else one row a dataset of a point."""
    rows = history_rows(records)
    dropped = {"lag", "export s"} | (set() if any(row["skipped"] for row in rows) else {"skipped"})
    narrow = [{key: cell for key, cell in row.items() if key not in dropped} for row in rows]
    several = len({record.suite for record in records}) > 1
    single = [row for record in records for row in _by_dataset(record, several=several)]
    return fitting(console, f"Evaluation history of {run}", rows, narrow, single)


def _by_dataset(record: EvalReport | SkippedPoint, *, several: bool) -> Iterator[dict[str, str]]:
    """With the suite beside the dataset's name where there are several."""
    step = f"{record.point.step}" + (f":{record.point.attempt}" if record.point.attempt else "")
    if isinstance(record, SkippedPoint):
        name = _in_suite(NONE, record.suite, several=several)
        yield {"step": step, "dataset": name, "score": f"skipped, {record.reason}: {record.message}"}
        return
    scores = {result.dataset: score_text(result) for result in record.results}
    for name, score in {**scores, **{name: f"{value:g}" for name, value in record.metrics.items()}}.items():
        yield {"step": step, "dataset": _in_suite(name, record.suite, several=several), "score": score}


def _in_suite(name: str, suite: str, *, several: bool) -> str:
    return f"{name} · {suite}" if several else name


def curves(records: Records, console: Console) -> Table | None:
    """One row a dataset or metric: its values from the oldest point to the newest; None without any value."""
    series = _series(records)
    if not series:
        return None
    several = len({suite for suite, _ in series}) > 1
    names = [_in_suite(name, suite, several=several) for suite, name in series]
    named = min(max(cell_len(plain(name)) for name in names), max(FOLDED_WIDTH, console.width // 2))
    room = max(8, console.width - named - len("   0.0000") * 2 - 8)
    rows = []
    for name, values in zip(names, series.values(), strict=True):
        known = [value for value in values if value is not None]
        rows.append({"dataset": name, "curve": sparkline(values, room), "first": _short(known[0]), "last": _short(known[-1])})
    gaps = f" ({GAP}: no number)" if any(None in values for values in series.values()) else ""
    narrow = [{key: row[key] for key in ("dataset", "curve")} for row in rows]
    return fitting(console, f"Curves{gaps}", rows, narrow)


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


def runs_table(known: Mapping[str, Records | None], console: Console) -> Table:
    """One row a run, the one with the newest record first; None are records that can't be read."""
    newest = sorted(known, key=lambda run: (_last_time(known[run]), run), reverse=True)
    wide, narrow, narrower = ([_run_row(run, known[run], most) for run in newest] for most in (MOST_SCORES, 1, 0))
    return fitting(console, None, wide, narrow, narrower, [{"run": row["run"], "points": row["points"]} for row in narrower])


def _run_row(run: str, records: Records | None, most: int) -> dict[str, str]:
    numbers, score = dict.fromkeys(("points", "skipped", "last step"), NONE), NONE
    if records is None:
        numbers["points"] = "unreadable"
    else:
        last = [record for record in records if isinstance(record, EvalReport)][-1:]
        scores = [f"{name} {_short(value)}" for record in last for name, value in _values(record).items()]
        score = ", ".join([*scores[:most], *[f"and {len(scores) - most} more"] * (len(scores) > most)]) or NONE
        skipped = sum(isinstance(record, SkippedPoint) for record in records)
        numbers = {"points": str(len(records)), "skipped": str(skipped), "last step": str(records[-1].point.step)}
    row = {"run": run, **numbers, "newest record": _last_time(records)[:16].replace("T", " ")}
    return row | {"last score": score} if most else row


def _last_time(records: Records | None) -> str:
    return "" if records is None else max(record.finished_at for record in records)

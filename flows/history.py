"""`pinpoint history`: the runs of a store, or one run's points and curves, as wide as the terminal is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from rich.console import Console

from flows.given import SettingsOption, StoreOption, usable_settings
from flows.history_tables import curves, points, reading_console, runs_table
from infra.errors import ConfigError
from infra.model import EvalReport, SkippedPoint
from infra.records import history, runs
from infra.store import Store

AT_ONCE = 8


def show_history(
    run: Annotated[str | None, typer.Argument(help="without it, the runs are listed")] = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Show the runs, or the evaluation history of one (docs/history.md)."""
    opened, out = Store(usable_settings(settings_file, store).store), reading_console()
    if run is not None:
        _show_one(run, history(opened, known_run(opened, run)), out)
    elif known := runs(opened):
        out.print(runs_table(_all(opened, known), out))
    else:
        out.print(f"no runs yet in {opened.url}", soft_wrap=True, highlight=False)


def _show_one(run: str, records: list[EvalReport | SkippedPoint], out: Console) -> None:
    out.print(points(run, records, out))
    if drawn := curves(records, out):
        out.print(drawn)


def known_run(store: Store, run: str) -> str:
    """Raises ConfigError, with the runs there are, for one that has no record."""
    known = runs(store)
    if run not in known:
        raise ConfigError(f"no run {run!r} in {store.url}; runs there: {', '.join(known) or 'none'}")
    return run


def _all(store: Store, names: list[str]) -> dict[str, list[EvalReport | SkippedPoint] | str]:
    """The records of each run, or why they can't be read: one damaged run does not hide the others."""

    def read(name: str) -> list[EvalReport | SkippedPoint] | str:
        try:
            return history(store, name)
        except (ValueError, ConfigError) as error:
            return f"can't be read: {error}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(read, names), strict=True))

"""`pinpoint history`: the runs of a store, or one run's points and curves, as wide as the terminal is."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from rich.console import Console

from flows.given import SettingsOption, StoreOption, read_store
from flows.history_tables import curves, points, runs_table
from flows.terminal import plain_long, reading_console
from infra.errors import ConfigError, PinpointError
from infra.model import EvalReport, SkippedPoint
from infra.presentation import plain
from infra.records import history, runs
from infra.store import Store

AT_ONCE = 8
Record = EvalReport | SkippedPoint


def show_history(
    run: Annotated[str | None, typer.Argument(help="without it, the runs are listed")] = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Show the runs, or the evaluation history of one (docs/history.md)."""
    opened, out = read_store(settings_file, store), reading_console()
    if run is not None:
        _show_one(run, history(opened, known_run(opened, run)), out)
    elif known := runs(opened):
        _show_all(_all(opened, known), out)
    else:
        out.print(f"no runs yet in {opened.url}", soft_wrap=True, highlight=False)


def _show_one(run: str, records: list[Record], out: Console) -> None:
    out.print(points(run, records, out))
    if drawn := curves(records, out):
        out.print(drawn)


def _show_all(known: Mapping[str, list[Record] | str], out: Console) -> None:
    """Below the table why a run can't be read, in words that can be copied whole."""
    out.print(runs_table({run: None if isinstance(found, str) else found for run, found in known.items()}, out))
    for run, found in known.items():
        if isinstance(found, str):
            out.print(f"* {plain(run)}: {found}", soft_wrap=True, highlight=False, markup=False)


def known_run(store: Store, run: str) -> str:
    """Raises ConfigError, with the runs there are, for one that has no record."""
    known = runs(store)
    if run not in known:
        raise ConfigError(f"no run {run!r} in {store.url}; runs there: {', '.join(known) or 'none'}")
    return run


def _all(store: Store, names: list[str]) -> dict[str, list[Record] | str]:
    """The records of each run, or why they can't be read: one damaged run does not hide the others."""

    def read(name: str) -> list[Record] | str:
        try:
            return history(store, name)
        except (PinpointError, OSError, ValueError) as error:
            return plain(plain_long(str(error)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(read, names), strict=True))

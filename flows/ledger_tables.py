"""Saved checkpoints as tables that fit the terminal: keys and places get shorter there, and still name one each."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flows.terminal import fitting, stacked
from infra.wording import NONE

Rows = Sequence[dict[str, str]]
LEAST_KEY = 8
LEFT_OUT = ("datasets", "most tokens", "GB read", "why")  # where there is little room; a state has its why beside it there
ROOMS = (30, 16)  # columns for a place and a state, where they are folded


def ledger_table(console: Console, title: str, rows: Rows) -> Table:
    """One row a saved checkpoint, or a key of the ledger."""
    folder = _common_folder([row["place"] for row in rows if row["place"]])
    length = _telling([row["key"] for row in rows])
    short = [{**row, "key": row["key"][:length], "place": row["place"].removeprefix(folder)} for row in rows]
    filled = {column for row in short for column, cell in row.items() if cell not in ("", NONE)}
    short = [{column: cell for column, cell in row.items() if column in filled} for row in short]
    narrow = [_narrow(row) for row in short]
    below = f"{title}, below {folder}" if folder else title
    return fitting(console, title, rows, short, narrow, stacked(short), short_title=below, rooms=ROOMS)


def _narrow(row: dict[str, str]) -> dict[str, str]:
    if "state" not in row:
        return row
    why = row.get("why", NONE)
    state = row["state"] if why == NONE else f"{row['state']}: {why}"
    return {column: cell for column, cell in (row | {"state": state}).items() if column not in LEFT_OUT}


def _common_folder(places: Sequence[str]) -> str:
    """The folder that all are in, with a '/' at its end; "" if that says nothing."""
    folder = posixpath.commonprefix([f"{posixpath.dirname(place)}/" for place in places])
    folder = folder[: folder.rfind("/") + 1]
    return "" if folder in ("/", "s3://") else folder


def _telling(keys: Sequence[str]) -> int:
    """How many characters tell the keys from each other: `pinpoint retry` takes the beginning of one."""
    different = set(keys)
    longest = max(map(len, different), default=0)
    return next((n for n in range(LEAST_KEY, longest) if len({key[:n] for key in different}) == len(different)), longest)

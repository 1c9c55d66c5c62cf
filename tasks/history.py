"""A run's history in the Prefect UI: one keyed table whose versions are the run's growth, made from the store's records."""

from __future__ import annotations

import asyncio

from prefect.artifacts import acreate_table_artifact

from infra.presentation import history_key, history_rows
from infra.records import history
from infra.store import Store

MOST_VERSIONS = 3


async def show_history(store: Store, run: str) -> None:
    """One keyed table a run; each version of it is the run's history up to then.

    Two points that end together may read before either has written: who finds more records afterwards writes again, so that
    the newest version misses none.
    """
    records = await asyncio.to_thread(history, store, run)
    for _ in range(MOST_VERSIONS):
        await acreate_table_artifact(history_rows(records), key=history_key(run), description=f"Evaluation history of {run}")
        shown, records = len(records), await asyncio.to_thread(history, store, run)
        if len(records) == shown:
            return

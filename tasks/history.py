"""A run's history in the Prefect UI: one keyed table whose versions are the run's growth, made from the store's records."""

from __future__ import annotations

import asyncio

from prefect.artifacts import acreate_table_artifact

from infra.presentation import history_key, history_rows
from infra.records import history
from infra.store import Store


async def show_history(store: Store, run: str) -> None:
    """One keyed table a run; each version of it is the run's history up to then."""
    records = await asyncio.to_thread(history, store, run)
    await acreate_table_artifact(history_rows(records), key=history_key(run), description=f"Evaluation history of {run}")

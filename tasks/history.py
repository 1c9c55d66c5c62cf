"""A run's history in the Prefect UI: one keyed table whose versions are the run's growth, made from the store's records."""

from __future__ import annotations

import asyncio
import re

from prefect.artifacts import acreate_table_artifact

from infra.presentation import history_rows
from infra.records import history
from infra.store import Store


async def show_history(store: Store, run: str) -> None:
    """One keyed table a run; each version of it is the run's history up to then."""
    records = await asyncio.to_thread(history, store, run)
    await acreate_table_artifact(history_rows(records), key=history_key(run), description=f"Evaluation history of {run}")


def history_key(run: str) -> str:
    """Prefect takes lowercase letters, digits and dashes."""
    return f"history-{re.sub('[^a-z0-9]+', '-', run.lower()).strip('-')}"

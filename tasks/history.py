"""A run's history in the Prefect UI, made from the store's records: a table and a curve, whose versions are the run's growth.

Beside them is a comparison with the runs that were measured with the same suite. None of these costs a point more than a
bounded time, and none of them can fail it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact

from infra.comparison_index import enter, entered
from infra.pictures import comparison_image, curve_image
from infra.presentation import comparison_key, comparison_markdown, curve_key, curve_markdown, history_key, history_rows
from infra.presentation.run_pages import Record, history_description
from infra.records import history
from infra.store import Store
from tasks.showing import shown

logger = logging.getLogger(__name__)
MOST_VERSIONS = 3
MOST_ROWS, MOST_CELLS, LEAST_ROWS = 200, 4000, 10


async def show_history(store: Store, run: str, suite: str) -> None:
    """One keyed table and one keyed curve a run, one comparison a suite; each version is the history up to then.

    Two points that end together may read before either has written: who finds more records afterwards writes again, so that
    the newest version misses none.
    """
    await shown(f"the history of {run}", _show_history(store, run, suite))


async def _show_history(store: Store, run: str, suite: str) -> None:
    records = await asyncio.to_thread(history, store, run)
    for _ in range(MOST_VERSIONS):
        await shown(f"the table of {run}", _show_table(run, records))
        await shown(f"the curve of {run}", _show_curve(store, run, records))
        await shown(f"the comparison of {run} with other runs", _show_comparison(store, run, suite, records))
        seen, records = len(records), await asyncio.to_thread(history, store, run)
        if len(records) == seen:
            return


async def _show_table(run: str, records: Sequence[Record]) -> None:
    rows = history_rows(records[-MOST_ROWS:])[::-1]  # of which the UI shows the first ten
    rows = rows[: max(LEAST_ROWS, MOST_CELLS // max(map(len, rows), default=1))]
    await acreate_table_artifact(rows, key=history_key(run), description=history_description(run, records, len(rows)))


async def _show_curve(store: Store, run: str, records: Sequence[Record]) -> None:
    image, note = await asyncio.to_thread(curve_image, run, records)
    markdown = curve_markdown(run, records, image, note, store_url=store.url)
    await acreate_markdown_artifact(markdown, key=curve_key(run), description=history_description(run, records, len(records)))


async def _show_comparison(store: Store, run: str, suite: str, records: Sequence[Record]) -> None:
    """As soon as two runs were measured with the suite."""
    await asyncio.to_thread(enter, store, run, suite, records)
    histories, others = await asyncio.to_thread(entered, store, suite)
    if len(histories) > 1:
        image, note = await asyncio.to_thread(comparison_image, histories)
        markdown = comparison_markdown(suite, histories, image, others=others, note=note)
        description = f"{len(histories)} runs measured with {suite}, side by side"
        await acreate_markdown_artifact(markdown, key=comparison_key(suite), description=description)

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
MOST_ROWS = 200


async def show_history(store: Store, run: str) -> None:
    """One keyed table and one keyed curve a run; each version of them is the run's history up to then.

    Two points that end together may read before either has written: who finds more records afterwards writes again, so that
    the newest version misses none.
    """
    await shown(f"the history of {run}", _show_history(store, run))


async def _show_history(store: Store, run: str) -> None:
    records = await asyncio.to_thread(history, store, run)
    for _ in range(MOST_VERSIONS):
        newest = history_rows(records[-MOST_ROWS:])[::-1]  # the UI shows the first ten
        description = history_description(run, records, len(newest))
        await acreate_table_artifact(newest, key=history_key(run), description=description)
        await shown(f"the curve of {run}", _show_curve(store, run, records))
        await shown(f"the comparison of {run} with other runs", _show_comparisons(store, run, records))
        seen, records = len(records), await asyncio.to_thread(history, store, run)
        if len(records) == seen:
            return


async def _show_curve(store: Store, run: str, records: Sequence[Record]) -> None:
    image, note = await asyncio.to_thread(curve_image, run, records)
    markdown = curve_markdown(run, records, image, note, store_url=store.url)
    await acreate_markdown_artifact(markdown, key=curve_key(run), description=f"Curve of {run}, {len(records)} points")


async def _show_comparisons(store: Store, run: str, records: Sequence[Record]) -> None:
    """One keyed artifact a suite, as soon as two runs were measured with it."""
    for suite in await asyncio.to_thread(enter, store, run, records):
        histories, others = await asyncio.to_thread(entered, store, suite)
        if len(histories) > 1:
            image, note = await asyncio.to_thread(comparison_image, histories)
            markdown = comparison_markdown(suite, histories, image, others=others, note=note)
            description = f"{len(histories)} runs measured with {suite}, side by side"
            await acreate_markdown_artifact(markdown, key=comparison_key(suite), description=description)

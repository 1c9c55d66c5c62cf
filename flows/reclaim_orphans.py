"""Deletes what killed processes left behind: snapshots, half-done uploads and staged models that no live lease claims."""

from __future__ import annotations

import asyncio
import logging

from prefect import flow
from prefect.artifacts import acreate_table_artifact

from infra.config import load_settings
from infra.reclaim import rows, sweep
from infra.store import Store
from trainer_integration.outbox import staged_in_outbox

logger = logging.getLogger(__name__)
TIMEOUT_S = 3600


@flow(name="reclaim_orphans", flow_run_name="reclaim orphans", persist_result=False, timeout_seconds=TIMEOUT_S)
async def reclaim_orphans(store_url: str | None = None, dry_run: bool = False) -> int:
    """Sweep a store (by default the one of this machine's settings) and this machine's staging; gives the bytes freed."""
    settings = load_settings(store_url=store_url)
    found = await asyncio.to_thread(
        sweep, Store(settings.store), settings.staging_dir, wanted=staged_in_outbox(settings.home), dry_run=dry_run
    )
    freed = sum(item.size for item in found if item.deleted)
    logger.info("reclaimed %d bytes; %d of %d places deleted", freed, sum(item.deleted for item in found), len(found))
    await acreate_table_artifact(rows(found), key="reclaimed", description=f"{freed:,} bytes freed in {settings.store}")
    return freed

"""Deletes what killed processes left behind: snapshots, half-done uploads and staged models that no live lease claims."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.artifacts import acreate_table_artifact
from pydantic import Field

from infra.config import Settings, load_settings
from infra.errors import PinpointError, ServiceUnreachable
from infra.fleet.nodes import on_other_hosts
from infra.reclaim import Found, Swept, rows, sweep_all, sweep_staging
from infra.store import Store
from trainer_integration.deliver import deliver_left
from trainer_integration.outbox import staged_in_outbox

logger = logging.getLogger(__name__)
TIMEOUT_S = 3600
DELIVER_S = 30.0


@flow(name="reclaim_orphans", flow_run_name="reclaim orphans", persist_result=False, timeout_seconds=TIMEOUT_S)
async def reclaim_orphans(
    store_url: Annotated[str | None, Field(title="Store", description="object store; default: of the settings")] = None,
    dry_run: Annotated[bool, Field(title="Dry run", description="only list what would be deleted")] = False,
) -> int:
    """Sweep a store (by default the one of this machine's settings) and every node's staging; gives the bytes freed.

    What fails is shown with the rest, and fails the run once everything else is done.
    """
    settings = load_settings(store_url=store_url)
    swept = await asyncio.to_thread(
        sweep_all, Store(settings.store), settings.staging_dir, wanted=staged_in_outbox(settings.home), dry_run=dry_run
    )
    found = swept.found + await _on_other_nodes(settings, dry_run)
    freed = sum(item.size for item in found if item.deleted)
    logger.info("reclaimed %d bytes; %d of %d places deleted", freed, sum(item.deleted for item in found), len(found))
    try:
        if not dry_run:
            await _deliver_left(settings)
    finally:
        await acreate_table_artifact(rows(found), key="reclaimed", description=f"{freed:,} bytes freed in {settings.store}")
    swept.raise_first()
    return freed


async def _deliver_left(settings: Settings) -> None:
    """What trainers on this machine left in their outboxes when they ended: no point is lost because none starts again."""
    left = await asyncio.to_thread(deliver_left, settings, DELIVER_S)
    if left.delivered or left.waiting:
        logger.info("%d points of ended trainers were delivered, %d wait", len(left.delivered), len(left.waiting))
    for delivery in left.refused:
        logger.error("Prefect refused %s, which an ended trainer left", delivery.name)


async def _on_other_nodes(settings: Settings, dry_run: bool) -> list[Found]:
    """Staging of the cluster's other nodes, each by that node's own settings; none without a cluster."""
    if not settings.ray_address:
        return []
    try:
        swept = await on_other_hosts(sweep_staging_here, dry_run, staged_in_outbox(settings.home))
    except ServiceUnreachable as error:
        logger.warning("staging of other nodes was not swept: %s", error)
        return [Found.not_swept(f"other nodes of {settings.ray_address}", error)]
    found: list[Found] = []
    for host, outcome in swept.items():
        if isinstance(outcome, PinpointError):
            logger.warning("staging of %s was not swept: %s", host, outcome)
            outcome = [Found.not_swept(host, outcome)]
        found += outcome
    return found


def sweep_staging_here(dry_run: bool, wanted: Sequence[Path] = ()) -> list[Found]:
    """`wanted` are of points whose outbox is on another node."""
    settings, swept = load_settings(), Swept()
    with swept.going_on(f"{socket.gethostname()}:{settings.staging_dir}"):
        swept.found += sweep_staging(settings.staging_dir, [*wanted, *staged_in_outbox(settings.home)], dry_run=dry_run)
    return swept.found

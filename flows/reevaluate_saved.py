"""Saved checkpoints that have no report under the current suite are submitted for evaluation, by a schedule or by hand.

This flow looks, claims and submits; each evaluation is a flow run of `evaluate_snapshot`. Any number of these may run at once:
what is evaluated once and what is not is decided in the store's ledger (docs/reevaluation.md).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from prefect import flow
from prefect.artifacts import acreate_table_artifact
from prefect.settings import get_current_settings

from flows.rounds import reevaluate_once
from infra.config import load_settings, parse
from infra.model import Care, Order, Reevaluation, Suite, Where
from infra.presentation import plain
from infra.saved.rows import step_summary
from infra.suite_files import load_suite
from trainer_integration.deliver import API_URL

logger = logging.getLogger(__name__)
TIMEOUT_S = 6 * 3600
ARTIFACT = "reevaluation"


@flow(name="reevaluate_saved", flow_run_name="reevaluate saved", persist_result=False, timeout_seconds=TIMEOUT_S)
async def reevaluate_saved(
    roots: list[str],
    suite: str | Suite,
    pattern: str | None = None,
    order: Order = Order(),  # noqa: B008
    limit: int | None = None,
    where: Where = Where(),  # noqa: B008
    care: Care = Care(),  # noqa: B008
    dry_run: bool = False,
) -> dict[str, Any]:
    """Submit the saved checkpoints that have no report yet; says which, and what became of the others.

    Args:
        roots: folders that checkpoints are saved in, or s3://bucket/prefix
        suite: what to measure: a suite file where flows run, which is read anew each time, or the name of a ready suite
        pattern: regular expression for a checkpoint's path below its root, with a group for its step; default: usual layouts
        order: which checkpoints come first, and which are left out
        limit: submit at most so many this time; default: all
        where: on what they are measured, and where the results go
        care: what to do about unfinished checkpoints, failures, and others who need the engines
        dry_run: submit nothing, list what would run and what it would cost
    """
    values = {"roots": roots, "pattern": pattern, "order": order, "limit": limit, "where": where, "care": care}
    asked = parse(Reevaluation, values, where="reevaluate_saved")
    settings = load_settings(store_url=where.store_url)
    loaded = suite if isinstance(suite, Suite) else await asyncio.to_thread(load_suite, suite)
    api_url = get_current_settings().api.url or settings.prefect_api_url or API_URL
    done, rows, told = await asyncio.to_thread(reevaluate_once, asked, loaded, settings, api_url, dry_run)
    logger.info("%s Submitted steps: %s", told, step_summary(done.submitted))
    shown = [{name: plain(cell) for name, cell in row.items()} for row in rows]
    await acreate_table_artifact(shown, key=ARTIFACT, description=told)
    reached = done.reached.saved.step if done.reached else None
    return {"submitted": [one.saved.step for one in done.submitted], "left": done.left, "reached": reached}

"""Runs this project's deployments in one place: each flow run in a process of its own, started within a second or two.

`python -m flows.serve` is what `pinpoint up` starts. A runner from `serve()` is used rather than a process worker, because
a flow of a process worker that gets SIGTERM never runs its `finally` and stays Running for ever.
"""

from __future__ import annotations

import asyncio
import sys

import httpx
from prefect import aserve
from prefect.deployments.runner import RunnerDeployment
from prefect.types.entrypoint import EntrypointType

from flows.evaluate_live import evaluate_live
from flows.evaluate_snapshot import evaluate_snapshot
from flows.reclaim_orphans import reclaim_orphans
from flows.reevaluate_saved import reevaluate_saved
from flows.schedules import PAUSED, kept
from flows.secrets_block import load_secrets
from flows.stack import PASSWORD_REMEDY, REFUSED
from infra.config import load_settings
from infra.errors import PinpointError
from infra.processes import end_group_with_parent

DEPLOYMENT = "pinpoint"
RUNS_AT_ONCE = 4
RECLAIM_EVERY_S = 3600
ORPHAN_GRACE_S = 20.0  # for flows to end in order when whoever started this was killed


async def serve() -> None:
    """Registers the deployments and runs what is scheduled, until it is ended."""
    deployment = await evaluate_snapshot.ato_deployment(
        name=DEPLOYMENT,
        description="Evaluate one snapshot; triggered by a trainer at each eval-due step.",
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    live = await evaluate_live.ato_deployment(
        name=DEPLOYMENT,
        description="Evaluate the live model on the trainer's own engines, while its producer waits at a gate.",
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    reclaiming = await reclaim_orphans.ato_deployment(
        name=DEPLOYMENT,
        description="Delete snapshots, uploads and staged models that no live lease claims.",
        interval=RECLAIM_EVERY_S,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    reevaluating = await reevaluation()
    await aserve(
        deployment, live, reclaiming, reevaluating, limit=RUNS_AT_ONCE, pause_on_shutdown=False, print_starting_message=False
    )


async def reevaluation() -> RunnerDeployment:
    """With the schedules and parameters that people gave it."""
    return await reevaluate_saved.ato_deployment(
        name=DEPLOYMENT,
        description="Submit the saved checkpoints below given roots that have no report yet (docs/reevaluation.md).",
        entrypoint_type=EntrypointType.MODULE_PATH,
        **await kept(f"reevaluate_saved/{DEPLOYMENT}", PAUSED),
    )


async def _main() -> None:
    settings = load_settings()
    settings.export_s3()
    if settings.secrets_block:
        await load_secrets(settings.secrets_block)
    await serve()


if __name__ == "__main__":
    if "--end-with-parent" in sys.argv:
        end_group_with_parent(ORPHAN_GRACE_S)
    try:
        asyncio.run(_main())
    except PinpointError as error:
        sys.exit(f"error: {error}")
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in REFUSED:
            raise
        sys.exit(f"error: Prefect at {error.request.url} answers {error.response.status_code}: {PASSWORD_REMEDY}")

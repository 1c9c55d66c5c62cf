"""The trainer's own engines say which weights they serve, before the first prompt and again after the last."""

from __future__ import annotations

import os
from typing import Any

from prefect import task
from prefect.blocks.system import Secret

from infra import attaching
from infra.errors import ConfigError
from infra.model import LiveFleet, LiveRequest
from tasks.retrying import RETRIED

TIMEOUT_S = 120


@task(name="attach", task_run_name="attach step {request.point.step}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def attach(request: LiveRequest) -> LiveFleet:
    """Raises PinViolation naming the engines that disagree, EngineError for one that does not answer."""
    return await attaching.attach(request, await api_key(request.api_key_from))


@task(name="confirm", task_run_name="confirm step {fleet.point.step}", timeout_seconds=TIMEOUT_S, **RETRIED)
async def confirm(fleet: LiveFleet) -> None:
    """Raises PinViolation naming the engine whose version moved, EngineError for one that does not answer."""
    await attaching.confirm_unmoved(fleet)


async def api_key(source: str) -> str:
    """The key that `source` names; "" if it names none. Raises ConfigError if it is not there."""
    kind, _, name = source.partition(":")
    if kind == "env":
        if name not in os.environ:
            raise ConfigError(f"the engines' key is looked for in ${name}, which is not set where the flow runs")
        return os.environ[name]
    if kind == "secret":
        try:
            block: Any = await Secret.aload(name)
        except ValueError as error:
            raise ConfigError(f"the engines' key is looked for in Prefect's secret {name!r}: {error}") from None
        return str(block.get())
    return ""

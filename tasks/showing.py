"""Artifacts are made from what is in the store: one that fails, or that Prefect does not take, costs nothing but itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)
DEADLINE_S = 45.0


async def shown(name: str, showing: Coroutine[Any, Any, object]) -> bool:
    """Whether `name` was shown within `DEADLINE_S`; if not, the log says why, and the point goes on."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            await showing
    except TimeoutError:
        logger.warning("%s is not shown: it took longer than %g s", name, DEADLINE_S)
    except Exception as error:  # noqa: BLE001 (the point has its record: nothing that people see of it may undo that)
        logger.warning("%s is not shown: %s", name, _said(error))
    else:
        return True
    return False


def _said(error: Exception) -> str:
    """Prefect's own messages run over many lines and carry a whole response."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"

"""People see how far a dataset is, in the UI and through it in the terminal; nothing waits for Prefect to show it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import anyio
from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact

from infra.running.progress import Progress

logger = logging.getLogger(__name__)
EVERY_S = 3.0
LAST_S = 3.0
KEY = "progress-"


@asynccontextmanager
async def shown(progress: Progress, dataset: str) -> AsyncIterator[None]:
    """Keeps a progress artifact of the task run up to date while the body runs."""
    bar = _Bar(progress, dataset)
    keeping = asyncio.create_task(bar.keep(), name=f"progress of {dataset}")
    try:
        yield
    finally:
        keeping.cancel()
        with anyio.move_on_after(LAST_S, shield=True):
            await asyncio.wait([keeping])
            await bar.show()


class _Bar:
    """One artifact; a Prefect that does not take it is told again the next time."""

    def __init__(self, progress: Progress, dataset: str) -> None:
        self._progress, self._dataset = progress, dataset
        self._artifact: UUID | None = None
        self._said = ""

    async def keep(self) -> None:
        while True:
            await self.show()
            await asyncio.sleep(EVERY_S)

    async def show(self) -> None:
        said = f"{self._dataset}: {self._progress}"
        if said == self._said:
            return
        percent = round(100 * self._progress.share, 1)
        try:
            if self._artifact is None:
                self._artifact = await acreate_progress_artifact(percent, key=key_of(self._dataset), description=said)
            else:
                await aupdate_progress_artifact(self._artifact, percent, description=said)
        except Exception as error:  # noqa: BLE001 (whatever it is, it must not cost the dataset)
            logger.warning("the progress of %s is not shown: %s: %s", self._dataset, type(error).__name__, error)
        else:
            self._said = said


def key_of(dataset: str) -> str:
    """Prefect takes lowercase letters, digits and dashes."""
    return KEY + re.sub("[^a-z0-9]+", "-", dataset.lower()).strip("-")

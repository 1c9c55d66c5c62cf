"""People see how far a dataset is; nothing waits for Prefect to show it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from infra.running.progress import Progress
from tasks import progress
from tasks.progress import key_of, shown


class Artifacts:
    """What Prefect's client was asked, which is another package's code at a wire that is not here."""

    def __init__(self) -> None:
        self.down: Exception | None = None
        self.said: list[tuple[float, str | None]] = []
        self.made = 0

    async def create(self, percent: float, key: str | None = None, description: str | None = None) -> uuid.UUID:
        self.made += 1
        await self.update(uuid.uuid4(), percent, description)
        return uuid.uuid4()

    async def update(self, artifact: uuid.UUID, percent: float, description: str | None = None, **others: Any) -> uuid.UUID:
        await asyncio.sleep(0)
        if self.down:
            raise self.down
        self.said.append((percent, description))
        return artifact

    async def says(self, percent: float) -> None:
        """Waits until it does."""
        while percent not in [said for said, _ in self.said]:  # noqa: ASYNC110 - it is a look, not an event
            await asyncio.sleep(0.01)


@pytest.fixture
def artifacts(monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    made = Artifacts()
    monkeypatch.setattr(progress, "acreate_progress_artifact", made.create)
    monkeypatch.setattr(progress, "aupdate_progress_artifact", made.update)
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    return made


async def test_one_artifact_says_how_far_it_is_until_the_end(artifacts: Artifacts) -> None:
    state = Progress(total=4)
    async with shown(state, "sums"), asyncio.timeout(20):
        await artifacts.says(0.0)
        state.done = 2
        await artifacts.says(50.0)
        state.done = 4
    assert artifacts.made == 1
    percents = [percent for percent, _ in artifacts.said]
    assert (percents[0], percents[-1]) == (0.0, 100.0)
    assert (artifacts.said[-1][1] or "").startswith("sums: 4 of 4 samples")


@pytest.mark.parametrize("fault", [httpx.ConnectError("refused"), RuntimeError("Timed out"), ValueError("a page")])
async def test_a_prefect_that_is_down_costs_the_bar_and_nothing_else(artifacts: Artifacts, fault: Exception) -> None:
    artifacts.down = fault
    async with shown(Progress(total=1), "sums"):
        async with asyncio.timeout(20):
            while not artifacts.made:  # noqa: ASYNC110 - it is a look, not an event
                await asyncio.sleep(0.01)
            artifacts.down = None
            await artifacts.says(0.0)
    assert artifacts.made > 1


async def test_a_body_that_fails_is_not_hidden_by_its_bar(artifacts: Artifacts) -> None:
    with pytest.raises(ValueError, match="no"):
        async with shown(Progress(), "sums"):
            raise ValueError("no")


def test_a_key_is_what_prefect_takes() -> None:
    assert key_of("MATH_500-x") == "progress-math-500-x"

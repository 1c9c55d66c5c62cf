"""Many requests are asked of pinned engines, and either all are answered by the pinned version alone or there is no number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from infra.black_boxes.pinned_asker import PinnedAsker
from infra.engines.client import EngineClient, Generation, Logprobs
from infra.errors import EngineDead, EngineRefused, PinViolation
from infra.model import Sampling
from infra.pinning import pin
from tests.fakes.engine import FakeEngine
from tests.infra.pinned import fleet

GENERATE = "/generate"


@dataclass(frozen=True)
class Ready:
    asker: PinnedAsker
    engines: tuple[FakeEngine, ...]

    async def texts(self, prompts: list[str], at_once: int = 64) -> list[str]:
        answers = await self.asker.answers([partial(generate, prompt) for prompt in prompts], at_once)
        return [answer.text for answer in answers]

    def asked(self) -> list[list[str]]:
        """Prompts that each engine was sent."""
        sent = [[body for _, path, body in engine.requests if path == GENERATE] for engine in self.engines]
        return [sorted(body["text"] for body in bodies if "text" in body) for bodies in sent]


async def generate(prompt: str, client: EngineClient, rid: str) -> Generation:
    return await client.generate(prompt, Sampling(), rid=rid, timeout_s=5)


async def score(ids: list[int], client: EngineClient, rid: str) -> Logprobs:
    return await client.logprobs(ids, rid=rid, timeout_s=5)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Ready]:
    with fleet(tmp_path) as made:
        pinned = await pin(made.lease(made.new), made.new)
        for engine in made.engines:
            engine.answers = lambda prompt: f"{prompt}!"
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(EngineClient(e.base_url, pinned.api_key)) for e in pinned.engines]
            yield Ready(PinnedAsker(pinned, clients), made.engines)


async def test_answers_come_in_order_and_neighbours_share_an_engine(two: Ready) -> None:
    assert await two.texts(list("abcd")) == ["a!", "b!", "c!", "d!"]
    assert two.asked() == [["a", "b"], ["c", "d"]]
    assert await two.texts([]) == []


async def test_an_engine_has_so_many_requests_at_a_time_and_no_more(two: Ready) -> None:
    running = most = 0

    async def counted(client: EngineClient, rid: str) -> Generation:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return await generate("1", client, rid)

    await two.asker.answers([counted] * 20, 2)
    assert most == 4  # of two engines


@pytest.mark.parametrize("fault", ["foreign_at", "mixed_at"])
async def test_one_response_of_another_version_leaves_no_answer(two: Ready, fault: str) -> None:
    setattr(two.engines[1], fault, 2)
    with pytest.raises(PinViolation, match="engine engine-1 answered run/10/0.*someone/1/0/else.*pinned is run/10/0"):
        await two.texts(list("abcd"))


async def test_so_does_one_score_or_a_response_without_a_version(two: Ready) -> None:
    two.engines[0].scored_by = "someone/1/0/else"
    with pytest.raises(PinViolation, match="someone/1/0/else"):
        await two.asker.answers([partial(score, [1, 2, 3])])
    two.engines[0].scored_by, two.engines[0].unlabelled = "", True
    with pytest.raises(PinViolation):
        await two.asker.answers([partial(score, [1, 2, 3])])


async def test_a_request_that_an_engine_did_not_answer_is_tried_on_the_next(two: Ready) -> None:
    two.engines[0].drops = {GENERATE}
    assert await two.texts(list("abcd")) == ["a!", "b!", "c!", "d!"]
    two.engines[1].drops = {GENERATE}
    with pytest.raises(EngineDead):
        await two.texts(list("abcd"))


async def test_a_request_that_is_itself_at_fault_is_not_tried_again(two: Ready) -> None:
    two.engines[0].context = two.engines[1].context = 3
    with pytest.raises(EngineRefused, match="exceeds the maximum"):
        await two.texts(["too long"])
    assert two.asked() == [["too long"], []]

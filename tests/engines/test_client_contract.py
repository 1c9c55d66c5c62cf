"""What our client makes of an engine is the same for real SGLang, the embedded engine and the fake at the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra.engines.client import EngineClient
from infra.errors import EngineRefused
from infra.model import Sampling
from tests.engines.conftest import LAUNCHERS
from tests.engines.launching import RunningEngine

ENGINES = ["fake", *sorted(LAUNCHERS)]
GREEDY = Sampling(temperature=0.0, max_new_tokens=8)


@pytest.fixture
async def client(started_engine: RunningEngine, first: Path) -> AsyncIterator[EngineClient]:
    async with EngineClient(started_engine.base_url, started_engine.api_key or "") as made:
        await made.update_weights(str(first), "first", 60)
        yield made


async def test_a_version_is_read_back(client: EngineClient, second: Path) -> None:
    assert await client.weight_version() == "first"
    await client.update_weights(str(second), "second", 60)
    assert await client.weight_version() == "second"


async def test_checksums_change_with_the_weights_and_come_back_with_them(
    client: EngineClient, first: Path, second: Path
) -> None:
    whole, tensors, _ = await client.checksums(60)
    await client.update_weights(str(second), "second", 60)
    other, changed, _ = await client.checksums(60)
    assert other != whole
    assert changed.keys() == tensors.keys()
    assert not [name for name, checksum in tensors.items() if changed[name] == checksum]
    await client.update_weights(str(first), "again", 60)
    assert (await client.checksums(60))[:2] == (whole, tensors)


async def test_a_missing_folder_is_refused_with_400_and_the_old_weights_stay(client: EngineClient, tmp_path: Path) -> None:
    before = await client.checksums(60)
    with pytest.raises(EngineRefused) as refused:
        await client.update_weights(str(tmp_path / "nowhere"), "nowhere", 60)
    assert refused.value.status == 400
    assert (await client.weight_version(), await client.checksums(60)) == ("first", before)


async def test_an_engine_that_is_not_paused_resumes_all_the_same(client: EngineClient) -> None:
    await client.resume()
    assert await client.weight_version() == "first"


async def test_a_response_says_its_version_its_end_and_its_tokens(client: EngineClient) -> None:
    answer = await client.generate("1+2=", GREEDY, rid="mine", timeout_s=60)
    assert answer.weight_versions == ("first",)
    assert answer.finish in {"stop", "length"}
    assert 1 <= answer.completion_tokens <= 8


@pytest.mark.parametrize("prompt", ["1+2=", [1, 9, 5]])
async def test_a_prompt_is_a_text_or_tokens(client: EngineClient, prompt: str | list[int]) -> None:
    answer = await client.generate(prompt, GREEDY, rid="mine", timeout_s=60)
    assert 1 <= answer.completion_tokens <= GREEDY.max_new_tokens


@pytest.mark.parametrize("start", [0, 2])
async def test_a_given_text_gets_a_number_for_each_token_after_the_start(client: EngineClient, start: int) -> None:
    scores = await client.logprobs([5, 6, 7, 8], rid="mine", timeout_s=60, start=start)
    assert len(scores.values) == len(scores.likeliest) == 3 - start
    assert all(value < 0 for value in scores.values)
    assert scores.weight_versions == ("first",)


async def test_a_stranger_is_refused_with_401_where_there_is_a_key(client: EngineClient, started_engine: RunningEngine) -> None:
    if started_engine.api_key is None:
        assert await client.weight_version() == "first"
        return
    async with EngineClient(client.base_url, "wrong") as stranger:
        with pytest.raises(EngineRefused) as refused:
            await stranger.weight_version()
    assert refused.value.status == 401

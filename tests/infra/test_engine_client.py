"""SGLang's native HTTP protocol, spoken with a deadline on every call; a dropped connection is a dead engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from infra.engines.client import EngineClient
from infra.errors import EngineDead, EngineRefused, EngineTimeout
from infra.model import Sampling
from tests.fakes.engine import FakeEngine

GENERATE = "/generate"


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine("key") as made:
        yield made


async def test_a_generation_names_the_versions_of_all_its_spans_in_order(engine: FakeEngine) -> None:
    engine.mixed_at = 2
    async with EngineClient(engine.base_url, "key") as client:
        first = await client.generate("1+1=", Sampling(), rid="a", timeout_s=5)
        mixed = await client.generate("1+1=", Sampling(), rid="b", timeout_s=5)
    assert (first.text, first.finish, first.weight_versions, first.completion_tokens) == ("7", "stop", ("default",), 2)
    assert mixed.weight_versions == ("someone/1/0/else", "default")


async def test_a_generation_has_a_deadline_and_a_dropped_one_is_a_dead_engine(engine: FakeEngine) -> None:
    async with EngineClient(engine.base_url, "key") as client:
        engine.hangs = {GENERATE}
        with pytest.raises(EngineTimeout, match="no answer within 0.2 s"):
            await client.generate("1", Sampling(), rid="a", timeout_s=0.2)
        engine.hangs, engine.drops = set(), {GENERATE}
        with pytest.raises(EngineDead) as caught:
            await client.generate("1", Sampling(), rid="b", timeout_s=5)
    assert caught.value.engine == engine.base_url


async def test_scores_name_the_version_that_gave_them_and_a_missing_number_is_nan(engine: FakeEngine) -> None:
    engine.logprob = lambda token: None if token == 7 else -token / 2
    engine.scored_by = "someone/1/0/else"
    async with EngineClient(engine.base_url, "key") as client:
        scores = await client.logprobs([5, 6, 7], rid="a", timeout_s=5)
    assert (scores.values[0], math.isnan(scores.values[1]), scores.likeliest) == (-3.0, True, (6, 7))
    assert scores.weight_versions == ("someone/1/0/else",)
    ((_, _, body),) = engine.requests
    assert (body["sampling_params"]["max_new_tokens"], body["logprob_start_len"]) == (0, 0)


@pytest.mark.parametrize("fault", [{"scores_others": True}, {"finish": "abort"}])
async def test_scores_of_other_tokens_or_of_an_aborted_request_are_no_answer(engine: FakeEngine, fault: dict[str, Any]) -> None:
    for name, value in fault.items():
        setattr(engine, name, value)
    async with EngineClient(engine.base_url, "key") as client:
        with pytest.raises(EngineRefused, match="can't be read"):
            await client.logprobs([5, 6, 7], rid="a", timeout_s=5)


async def test_a_prompt_that_json_cannot_carry_is_not_sent(engine: FakeEngine) -> None:
    async with EngineClient(engine.base_url, "key") as client:
        with pytest.raises(ValueError, match="surrogates not allowed"):
            await client.generate("1 \ud800", Sampling(), rid="a", timeout_s=5)
    assert not engine.requests


async def test_a_refusal_carries_its_status_and_the_engines_own_words(engine: FakeEngine) -> None:
    engine.unavailable = {GENERATE}
    async with EngineClient(engine.base_url, "key") as client:
        with pytest.raises(EngineRefused, match="/generate answered 503: starting$") as caught:
            await client.generate("1", Sampling(), rid="a", timeout_s=5)
    assert caught.value.status == 503


async def test_an_update_neither_aborts_requests_nor_leaves_the_cache(engine: FakeEngine, tmp_path: object) -> None:
    async with EngineClient(engine.base_url, "key") as client:
        await client.update_weights(str(tmp_path), "v", 5)
    ((_, path, body),) = engine.requests
    assert (path, body["abort_all_requests"], body["flush_cache"]) == ("/update_weights_from_disk", False, True)


async def test_the_key_is_sent_and_not_shown_in_an_error(engine: FakeEngine) -> None:
    async with EngineClient(engine.base_url, "wrong-key") as client:
        with pytest.raises(EngineRefused, match="401: Unauthorized") as caught:
            await client.weight_version()
    assert "wrong-key" not in str(caught.value)
    assert engine.headers[0]["Authorization"] == "Bearer wrong-key"


async def test_a_client_that_was_not_entered_says_so(engine: FakeEngine) -> None:
    with pytest.raises(RuntimeError, match="context manager"):
        await EngineClient(engine.base_url).weight_version()

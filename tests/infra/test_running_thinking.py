"""A stop text ends the answer and not the reasoning before it, unless the dataset asks for that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from infra.attaching import attach
from infra.model import EvalPoint, LiveFleet, LiveRequest, Problem, Sample, SampleOutcome, Sampling, Suite
from infra.running import run_samples
from tests.fakes.engine import FakeEngine
from tests.infra.examples import dataset

KEY, QUESTION = "engine-key", "1+1="


@dataclass(frozen=True)
class Thinker:
    engine: FakeEngine
    fleet: LiveFleet

    async def sample(self, says: str, opening: str = "", tokens: int = 100, **changes: Any) -> Sample:
        """Of a model that says `says`, however often it is stopped in it; each of its turns counts two tokens."""
        asked = QUESTION + opening
        self.engine.answers = lambda prompt: says.removeprefix(prompt.removeprefix(asked))
        spec = dataset(sampling=Sampling(stop=("\n\n", "###"), max_new_tokens=tokens), **changes)
        problem = Problem(id="p", prompt=QUESTION, answer="2", entry={})
        (sample,) = await run_samples(self.fleet, spec, [problem], lambda each: f"{each}{opening}")
        return sample

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [body for _, path, body in self.engine.requests if path == "/generate"]


@pytest.fixture
async def thinker() -> AsyncIterator[Thinker]:
    with FakeEngine(KEY) as engine:
        engine.version = "17"
        suite = Suite(name="s", datasets=(dataset(),))
        point = EvalPoint(run="run", step=40)
        request = LiveRequest(point=point, engines=(engine.base_url,), suite=suite, store_url="file:///store")
        yield Thinker(engine, await attach(request, KEY))


async def test_a_stop_text_inside_reasoning_is_gone_past_and_the_one_after_it_ends_the_answer(thinker: Thinker) -> None:
    sample = await thinker.sample("<think>one\n\ntwo###three</think>2\n\nand more")
    assert (sample.response, sample.reward) == ("<think>one\n\ntwo###three</think>2", 1.0)
    assert [body["sampling_params"]["stop"] for body in thinker.requests] == [["\n\n", "###"], ["</think>"], ["\n\n", "###"]]
    assert [body["sampling_params"]["max_new_tokens"] for body in thinker.requests] == [100, 98, 96]
    assert len({body["rid"] for body in thinker.requests}) == 3
    assert (sample.completion_tokens, sample.weight_versions) == (6, ("17", "17", "17"))


async def test_a_block_that_the_prompt_opened_is_reasoning_too(thinker: Thinker) -> None:
    sample = await thinker.sample("one\n\ntwo</think>2\n\nand more", opening="<think>")
    assert (sample.response, sample.reward) == ("one\n\ntwo</think>2", 1.0)


async def test_where_no_stop_text_is_met_in_reasoning_one_request_is_enough(thinker: Thinker) -> None:
    for says in ("<think>one</think>2\n\nand more", "2\n\nand more", "2"):
        assert (await thinker.sample(says)).reward == 1.0
    assert len(thinker.requests) == 3


async def test_reasoning_that_never_ends_is_asked_once_more_and_is_no_answer(thinker: Thinker) -> None:
    sample = await thinker.sample("<think>one\n\ntwo")
    assert (sample.response, sample.outcome) == ("<think>one\n\ntwo", SampleOutcome.NO_ANSWER)
    assert len(thinker.requests) == 2


async def test_reasoning_may_begin_again(thinker: Thinker) -> None:
    sample = await thinker.sample("<think>\n\n</think>It is <think>\n\n</think>2###")
    assert sample.response == "<think>\n\n</think>It is <think>\n\n</think>2"


async def test_all_turns_together_have_the_tokens_of_one_response(thinker: Thinker) -> None:
    sample = await thinker.sample("<think>one\n\ntwo</think>2\n\n", tokens=2)
    assert (sample.outcome, sample.response) == (SampleOutcome.TRUNCATED, "<think>one\n\n")
    assert len(thinker.requests) == 1


@pytest.mark.parametrize("changes", [{"stop_in_thinking": True}, {"think_markers": None}], ids=str)
async def test_a_dataset_can_ask_for_stop_texts_to_end_reasoning(thinker: Thinker, changes: dict[str, Any]) -> None:
    assert (await thinker.sample("<think>one\n\ntwo</think>2", **changes)).response == "<think>one"


async def test_a_turn_of_another_version_is_a_violation_like_any_other(thinker: Thinker) -> None:
    from infra.errors import PinViolation

    thinker.engine.foreign_at = 2
    with pytest.raises(PinViolation):
        await thinker.sample("<think>one\n\ntwo</think>2")

"""A prompt that was refused for its length is counted once, however many samples it was to have."""

from __future__ import annotations

import pytest

from infra.engines.embedded.sampling import BadRequest
from infra.engines.embedded.wire import _max_new_tokens
from infra.model import SampleOutcome
from infra.statistics import prompts_too_long
from tests.infra.examples import sample

SGLANG = (
    "The input (9 tokens) is longer than the model's context length (8 tokens).",
    "Requested token count exceeds the model's maximum context length of 8 tokens.",
    "Input length (9 tokens) exceeds the maximum allowed length (8 tokens).",
)


@pytest.mark.parametrize("said", SGLANG)
def test_prompts_are_counted_and_not_their_samples(said: str) -> None:
    lost = [sample("long", index, None, detail=f"problem 'long': /generate answered 400: {said}") for index in range(3)]
    others = [sample("p", 0, None, detail="/generate gave no answer within 300 s"), sample("q", 0, 1.0)]
    talk = sample("r", 0, 1.0, detail=said, outcome=SampleOutcome.OK)
    assert prompts_too_long([*lost, *others, talk]) == 1
    assert prompts_too_long(others) == 0


@pytest.mark.parametrize(("asked", "tokens"), [(None, 8), (4, 5)])
def test_what_the_embedded_engine_says_is_understood(asked: int | None, tokens: int) -> None:
    with pytest.raises(BadRequest) as caught:
        _max_new_tokens(asked, tokens, 8)
    assert prompts_too_long([sample("p", 0, None, detail=str(caught.value))]) == 1

"""A user's own function draws the response, in as many turns as it likes, and every turn is of the pinned version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from infra.errors import ConfigError, DatasetError, PinViolation
from infra.model import Problem, Sample, SampleOutcome
from infra.running import run_samples
from tests.fakes.engine import FakeEngine
from tests.infra.examples import TOKEN, dataset
from tests.infra.interrupted import pinned_to, problems


@dataclass(frozen=True)
class Ready:
    engines: tuple[FakeEngine, ...]

    async def run(self, function: str, rows: Sequence[Problem] | None = None, name: str = "sums") -> list[Sample]:
        spec = dataset(name, generate=f"tests.infra.generates:{function}")
        urls = [engine.base_url for engine in self.engines]
        return await run_samples(pinned_to(*urls), spec, rows or problems(6), str)

    @property
    def asked(self) -> list[tuple[int, str, str]]:
        """Engine, prompt and request id of each request."""
        return [
            (number, body["text"], body["rid"])
            for number, engine in enumerate(self.engines)
            for _, path, body in engine.requests
            if path == "/generate"
        ]


@pytest.fixture
def two() -> Iterator[Ready]:
    with ExitStack() as stack:
        engines = tuple(stack.enter_context(FakeEngine()) for _ in range(2))
        for engine in engines:
            engine.version = TOKEN
        yield Ready(engines)


async def test_all_turns_of_a_sample_are_asked_of_one_engine_and_counted(two: Ready) -> None:
    samples = await two.run("two_turns")
    assert {(s.outcome, s.response, s.weight_versions, s.completion_tokens) for s in samples} == {
        (SampleOutcome.OK, "7", (TOKEN, TOKEN), 4)
    }
    for n in range(6):
        turns = [(engine, prompt) for engine, prompt, _ in two.asked if prompt.startswith(f"{n}+1=")]
        assert [prompt for _, prompt in turns] == [f"{n}+1=", f"{n}+1=7 again: "]
        assert len({engine for engine, _ in turns}) == 1
    assert len({rid for _, _, rid in two.asked}) == 12


async def test_turns_that_are_asked_at_once_are_requests_of_their_own(two: Ready) -> None:
    samples = await two.run("votes")
    assert {(s.outcome, s.completion_tokens) for s in samples} == {(SampleOutcome.OK, 8)}
    assert len({rid for _, _, rid in two.asked}) == len(two.asked) == 24


async def test_half_a_turn_is_none(two: Ready) -> None:
    two.engines[1].finish = "abort"
    samples = await two.run("two_turns")
    assert {(s.outcome, s.engine, s.completion_tokens) for s in samples} == {(SampleOutcome.OK, "engine-0", 4)}


async def test_a_function_is_given_what_it_asks_for_by_name_and_its_text_is_graded(two: Ready) -> None:
    rows = [replace(row, entry={"prefix": "it is "}, answer="it is 7 0") for row in problems(2)]
    samples = await two.run("last_text", rows)
    assert {(s.response, s.reward) for s in samples} == {("it is 7 0", 1.0)}


@pytest.mark.parametrize("function", ["two_turns", "hides_violations"])
async def test_a_turn_of_another_version_is_a_pin_violation_whatever_the_function_makes_of_it(
    two: Ready, function: str
) -> None:
    two.engines[0].foreign_at = two.engines[1].foreign_at = 4
    with pytest.raises(PinViolation, match="someone/1/0/else"):
        await two.run(function)


async def test_a_function_that_raises_costs_its_own_sample_alone(two: Ready) -> None:
    samples = await two.run("raises_on_one")
    assert [s.outcome for s in samples].count(SampleOutcome.OK) == 5
    assert samples[3].outcome is SampleOutcome.INFRA_ERROR
    assert "raises_on_one raised KeyError: 'no such tool'" in samples[3].detail


@pytest.mark.parametrize(
    ("function", "said"),
    [("asks_nobody", "without asking its engine"), ("gives_a_number", "gave int: a response is a text, or a Generation")],
)
async def test_what_no_engine_said_is_no_response(two: Ready, function: str, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        await two.run(function)


async def test_a_turn_that_an_engine_cannot_answer_sends_the_sample_to_another_engine(two: Ready) -> None:
    two.engines[1].unavailable = {"/generate"}
    samples = await two.run("two_turns")
    assert {(s.outcome, s.engine) for s in samples} == {(SampleOutcome.OK, "engine-0")}


@pytest.mark.parametrize(
    ("function", "said"),
    [("not_async", "must be an async function"), ("nothing", "no attribute"), ("wants_more", "has a parameter 'secret'")],
)
async def test_a_function_that_cannot_be_called_is_refused_before_anything_is_asked(
    two: Ready, function: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await two.run(function)
    assert two.asked == []

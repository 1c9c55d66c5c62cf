"""Every sample is asked of a pinned engine and carries the version that the engine itself put on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.errors import DatasetError, FleetUnhealthy, PinViolation
from infra.model import DatasetSpec, PinnedFleet, Problem, Sample, SampleOutcome, Sampling
from infra.pinning import pin
from infra.running import run_samples, streaming, time_for
from tests.fakes.engine import FakeEngine
from tests.infra.examples import dataset
from tests.infra.graders import HANGING, HANGS_ON
from tests.infra.pinned import fleet

GENERATE = "/generate"
PROBLEMS = [Problem(id=f"p{n}", prompt=f"{n}+1=", answer=str(n + 1), entry={}) for n in range(6)]


@dataclass(frozen=True)
class Ready:
    """A pinned fleet of fakes, which answer right."""

    pinned: PinnedFleet
    engines: tuple[FakeEngine, ...]

    @property
    def token(self) -> str:
        return self.pinned.version.token

    async def run(self, spec: DatasetSpec | None = None, problems: Sequence[Problem] = PROBLEMS) -> list[Sample]:
        return await run_samples(self.pinned, spec or dataset(), problems, str)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Ready]:
    with fleet(tmp_path) as made:
        for engine in made.engines:
            engine.answers = lambda prompt: str(int(prompt.split("+")[0]) + 1)
        yield Ready(await pin(made.lease(made.new), made.new), made.engines)


async def test_all_samples_of_all_problems_come_back_in_order_with_their_version(two: Ready) -> None:
    samples = await two.run(dataset(samples_per_prompt=3))
    assert [(s.problem_id, s.index) for s in samples] == [(f"p{n}", i) for n in range(6) for i in range(3)]
    assert {s.weight_versions for s in samples} == {(two.token,)}
    assert {(s.outcome, s.reward) for s in samples} == {(SampleOutcome.OK, 1.0)}


async def test_all_samples_of_a_problem_are_asked_of_one_engine_and_both_engines_work(two: Ready) -> None:
    samples = await two.run(dataset(samples_per_prompt=3))
    by_problem = {s.problem_id: {t.engine for t in samples if t.problem_id == s.problem_id} for s in samples}
    assert all(len(engines) == 1 for engines in by_problem.values())
    assert {s.engine for s in samples} == {"engine-0", "engine-1"}


async def test_the_engine_is_asked_what_the_suite_says_and_under_a_request_id_of_its_own(two: Ready) -> None:
    await two.run(dataset(sampling=Sampling(temperature=0.5, top_p=0.9, max_new_tokens=7, stop=("\n",))))
    asked = [body for engine in two.engines for _, path, body in engine.requests if path == GENERATE and "text" in body]
    assert len({body["rid"] for body in asked}) == 6
    expected = {"temperature": 0.5, "top_p": 0.9, "max_new_tokens": 7, "stop": ["\n"]}
    assert all(expected.items() <= body["sampling_params"].items() for body in asked)


@pytest.mark.parametrize(
    ("fault", "said"), [("foreign_at", "version someone/1/0/else,"), ("mixed_at", "someone/1/0/else then run/10/0")]
)
@pytest.mark.parametrize("nth", [1, 3])
async def test_one_foreign_or_mixed_response_is_a_pin_violation_that_names_the_engine(
    two: Ready, fault: str, said: str, nth: int
) -> None:
    setattr(two.engines[1], fault, nth)
    with pytest.raises(PinViolation, match=f"engine engine-1 .*{said}") as caught:
        await two.run()
    assert caught.value.expected == two.token


async def test_a_response_that_names_no_version_is_a_pin_violation(two: Ready) -> None:
    two.engines[0].unlabelled = True
    with pytest.raises(PinViolation, match="engine engine-0"):
        await two.run()


async def test_an_engine_that_was_reloaded_behind_our_back_is_a_pin_violation(two: Ready) -> None:
    two.engines[1].version = "another/20/0/x"
    with pytest.raises(PinViolation, match="another/20/0/x"):
        await two.run()


@pytest.mark.parametrize("fault", ["drops", "unavailable", "garbles"])
async def test_a_request_that_an_engine_cannot_answer_is_tried_on_another_one(two: Ready, fault: str) -> None:
    setattr(two.engines[1], fault, {GENERATE})
    samples = await two.run()
    assert {(s.outcome, s.engine) for s in samples} == {(SampleOutcome.OK, "engine-0")}


async def test_an_engine_that_dies_midway_loses_and_doubles_no_sample(two: Ready) -> None:
    two.engines[1].drops_after = 1
    samples = await two.run(dataset(samples_per_prompt=4))
    assert len(samples) == len({(s.problem_id, s.index) for s in samples}) == 24
    assert {s.outcome for s in samples} == {SampleOutcome.OK}


async def test_an_engine_that_hangs_is_given_up_at_the_deadline(two: Ready) -> None:
    two.engines[1].hangs = {GENERATE}
    samples = await two.run(dataset(request_deadline_s=2.0))
    assert {(s.outcome, s.engine) for s in samples} == {(SampleOutcome.OK, "engine-0")}


def test_a_long_response_may_take_long() -> None:
    assert time_for(Sampling(max_new_tokens=100)) == 300
    assert time_for(Sampling(max_new_tokens=16384)) == pytest.approx(1638.4)


async def test_no_engine_that_answers_is_an_unhealthy_fleet_and_not_a_score(two: Ready) -> None:
    for engine in two.engines:
        engine.stop()
    with pytest.raises(FleetUnhealthy, match="no engine answered"):
        await two.run()


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("9+1=" + "x" * 99, "answered 400: Input length (103 tokens"), ("9+1=\ud800", "surrogates not allowed")],
    ids=["too long", "half a surrogate pair"],
)
async def test_a_prompt_that_is_itself_at_fault_is_an_infra_error_by_name_and_asked_of_no_other_engine(
    two: Ready, prompt: str, said: str
) -> None:
    for engine in two.engines:
        engine.context = 50
    *others, bad = await two.run(dataset(), [*PROBLEMS, Problem(id="long \udfff", prompt=prompt, answer="10", entry={})])
    assert (bad.outcome, bad.reward, bad.engine) == (SampleOutcome.INFRA_ERROR, None, "")
    assert bad.detail.startswith(r"problem 'long \udfff': ")
    assert said in bad.detail
    assert bad.prompt.encode()
    assert {sample.outcome for sample in others} == {SampleOutcome.OK}
    asked = [body["text"] for engine in two.engines for _, path, body in engine.requests if path == GENERATE and "text" in body]
    assert asked.count(prompt) == ("answered" in said)


async def test_a_dataset_all_of_whose_prompts_are_refused_is_at_fault_and_not_the_fleet(two: Ready) -> None:
    for engine in two.engines:
        engine.context = 1
    with pytest.raises(DatasetError, match="all 6 requests were refused, .*problem 'p[01]'.*exceeds the maximum") as caught:
        await two.run(dataset(name="sums"))
    assert caught.value.path == "sums"


async def test_a_wrong_key_is_the_fleets_fault_and_no_prompts(two: Ready) -> None:
    for engine in two.engines:
        engine.api_key = "another"
    with pytest.raises(FleetUnhealthy, match="401"):
        await two.run()


async def test_a_fleet_that_is_gone_is_not_blamed_on_the_one_prompt_that_is_at_fault_too(two: Ready) -> None:
    for engine in two.engines:
        engine.drops = {GENERATE}
    with pytest.raises(FleetUnhealthy, match="no engine answered: .*Disconnected"):
        await two.run(dataset(), [Problem(id="bad", prompt="\ud800", answer="1", entry={}), *PROBLEMS])


async def test_an_aborted_response_is_asked_for_again_and_never_a_zero(two: Ready) -> None:
    two.engines[1].finish = "abort"
    samples = await two.run()
    assert {(s.outcome, s.engine) for s in samples} == {(SampleOutcome.OK, "engine-0")}
    two.engines[0].finish = "abort"
    with pytest.raises(FleetUnhealthy, match="aborted"):
        await two.run()


@pytest.mark.parametrize(
    ("response", "finish", "spec", "outcome", "reward"),
    [
        ("7", "stop", {}, SampleOutcome.OK, 0.0),
        ("1", "length", {}, SampleOutcome.TRUNCATED, 1.0),
        ("", "stop", {}, SampleOutcome.NO_ANSWER, 0.0),
        ("none", "stop", {"answer_pattern": r"\d"}, SampleOutcome.NO_ANSWER, 0.0),
        ("none", "length", {"answer_pattern": r"\d"}, SampleOutcome.TRUNCATED, 0.0),
    ],
)
async def test_what_became_of_a_sample_is_said(
    two: Ready, response: str, finish: str, spec: dict[str, Any], outcome: SampleOutcome, reward: float
) -> None:
    for engine in two.engines:
        engine.answers, engine.finish = lambda prompt: response, finish
    (sample,) = await two.run(dataset(**spec), [Problem(id="p", prompt="0+1=", answer="1", entry={})])
    assert (sample.outcome, sample.reward, sample.response) == (outcome, reward, response)


async def test_a_sample_that_could_not_be_graded_has_no_reward_and_the_others_have(
    two: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "GRADE_DEADLINE_S", 2.0)
    two.engines[1].answers = lambda prompt: HANGS_ON if prompt == "hang" else "7"
    problems = [Problem(id=p, prompt=p, answer="7", entry={}) for p in ("a", "hang", "b", "c")]
    two.engines[0].answers = lambda prompt: "7"
    samples = await two.run(HANGING, problems)
    assert [(s.outcome, s.reward) for s in samples] == [
        (SampleOutcome.OK, 1.0),
        (SampleOutcome.GRADER_TIMEOUT, None),
        (SampleOutcome.OK, 1.0),
        (SampleOutcome.OK, 1.0),
    ]
    bad = Problem(id="bad", prompt="x", answer="seven", entry={})
    (raised, graded) = await two.run(dataset(grader="numeric"), [bad, Problem(id="g", prompt="g", answer="7", entry={})])
    assert (raised.outcome, raised.reward, graded.reward) == (SampleOutcome.GRADER_ERROR, None, 1.0)
    assert "ValueError" in raised.detail
    assert (raised.finish, graded.finish) == ("stop", "stop")

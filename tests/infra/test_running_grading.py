"""What an engine answers is graded as the dataset says, and a dataset that nobody could grade is asked of no engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.errors import ConfigError
from infra.model import PinnedFleet, Sample, SampleOutcome
from infra.pinning import pin
from infra.running import run_samples
from tests.fakes.engine import FakeEngine
from tests.infra.examples import dataset
from tests.infra.graders import PROBLEM, custom
from tests.infra.pinned import fleet


@dataclass(frozen=True)
class Ready:
    """A pinned fleet of fakes."""

    pinned: PinnedFleet
    engines: tuple[FakeEngine, ...]

    async def one(self, answer: str, opening: str = "", **changes: Any) -> Sample:
        for engine in self.engines:
            engine.answers = lambda prompt: answer
        (sample,) = await run_samples(self.pinned, dataset(**changes), [PROBLEM], lambda asked: f"{asked}{opening}")
        return sample

    @property
    def asked(self) -> list[str]:
        bodies = [body for engine in self.engines for _, path, body in engine.requests if path == "/generate"]
        return [body["text"] for body in bodies if body.get("text", "").startswith(PROBLEM.prompt)]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Ready]:
    with fleet(tmp_path) as made:
        yield Ready(await pin(made.lease(made.new), made.new), made.engines)


@pytest.mark.parametrize(
    ("answer", "opening", "outcome", "reward"),
    [
        ("<think>8?</think>7", "", SampleOutcome.OK, 1.0),
        ("<think>is it 7", "", SampleOutcome.NO_ANSWER, 0.0),
        ("is it 7", "<think>\n", SampleOutcome.NO_ANSWER, 0.0),
        ("is it 8?</think> 7", "<think>\n", SampleOutcome.OK, 1.0),
        ("8", "", SampleOutcome.OK, 0.0),
    ],
)
async def test_reasoning_that_was_cut_off_is_no_answer_whoever_opened_it(
    two: Ready, answer: str, opening: str, outcome: SampleOutcome, reward: float
) -> None:
    sample = await two.one(answer, opening, answer_pattern=r"\d+")
    assert (sample.outcome, sample.reward, sample.response) == (outcome, reward, answer)


async def test_mathematics_without_anything_to_read_is_no_answer_and_a_wrong_one_is_wrong(two: Ready) -> None:
    none = await two.one("I can't", grader="math")
    wrong = await two.one(r"\boxed{8}", grader="math")
    right = await two.one(r"\boxed{\frac{14}{2}}", grader="math")
    assert [(s.outcome, s.reward) for s in (none, wrong, right)] == [
        (SampleOutcome.NO_ANSWER, 0.0),
        (SampleOutcome.OK, 0.0),
        (SampleOutcome.OK, 1.0),
    ]


async def test_a_dataset_whose_grader_cannot_be_loaded_is_asked_of_no_engine(two: Ready) -> None:
    with pytest.raises(ConfigError, match="dataset sums: grader .*has no attribute 'nothing'"):
        await two.one("7", grader=custom("nothing").grader)
    assert two.asked == []
    await two.one("7")
    assert two.asked == [PROBLEM.prompt]

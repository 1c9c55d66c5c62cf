"""What the demo measures: additions that training never saw, and a task family of the reasoning-gym package."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from infra.datasets import load_problems
from infra.model import DatasetSpec, ReasoningGymSource, Sampling, Suite
from trainer_integration.tiny_trainer.addition import Pair

SUITE = "addition"
ANSWER = r"^0*(\d+)"
_SAMPLING = Sampling(temperature=0.0, max_new_tokens=6)


def reasoning_gym_dataset(size: int, seed: int) -> DatasetSpec:
    """Sums of two two-digit numbers, asked in the form that the tiny model reads."""
    return DatasetSpec(
        name="basic_arithmetic",
        source=ReasoningGymSource(
            reasoning_gym="basic_arithmetic",
            size=size,
            seed=seed,
            config={
                "min_terms": 2,
                "max_terms": 2,
                "min_digits": 2,
                "max_digits": 2,
                "operators": ["+"],
                "allow_parentheses": False,
                "allow_negation": False,
            },
        ),
        prompt_pattern=r"(?P<left>\d+) \+ (?P<right>\d+)",
        prompt_template="{left:0>2}+{right:0>2}=",
        answer_pattern=ANSWER,
        grader="reasoning_gym",
        sampling=_SAMPLING,
    )


def pairs_of(dataset: DatasetSpec) -> tuple[Pair, ...]:
    """The pairs that a dataset asks for, to be kept out of training."""
    prompts = (problem.prompt.rstrip("=").split("+") for problem in load_problems(dataset))
    return tuple((int(left), int(right)) for left, right in prompts)


def write_suite(folder: Path, held_out: Iterable[Pair], gym: DatasetSpec) -> Suite:
    """Writes the held-out pairs as JSONL and gives the suite over both datasets."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "held_out_addition.jsonl"
    rows = ({"id": f"{a}+{b}", "prompt": f"{a:02d}+{b:02d}=", "answer": str(a + b)} for a, b in held_out)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = DatasetSpec(name="held_out_addition", source=str(file), answer_pattern=ANSWER, grader="numeric", sampling=_SAMPLING)
    return Suite(name=SUITE, datasets=(held, gym))

"""Graders that misbehave; each is reached as the user's own regular expression or reasoning-gym family would be."""

from __future__ import annotations

from infra.model import DatasetSpec, Problem, ReasoningGymSource
from tests.infra.examples import dataset

# Backtracks for longer than the universe lasts on HANGS_ON, and matches other text at once.
HANGING = dataset(answer_pattern=r"(?:(?:a+)+)b|7")
HANGS_ON = "a" * 60
NUMERIC = dataset(grader="numeric", answer_pattern=r"-?[\w.,]+$")
PROBLEM = Problem(id="p", prompt="3+4=", answer="7", entry={})
RAISING = dataset(grader="numeric")
UNGRADABLE = Problem(id="q", prompt="?", answer="seven", entry={})
GYM = DatasetSpec(
    name="gym", source=ReasoningGymSource(reasoning_gym="basic_arithmetic", size=2, seed=1), grader="reasoning_gym"
)

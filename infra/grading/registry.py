"""Every grader that a suite can name, and where it is; none is imported before it is needed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from infra.errors import ConfigError
from infra.grading.scoring import Score
from infra.model import DatasetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Grader:
    """`factory` makes a Score of the settings and the dataset; None if the grade is given elsewhere, over HTTP.

    `revision` is raised by whoever changes what the grader says of any answer. `packages` are those that decide it with us.
    """

    factory: str | None
    revision: int = 1
    packages: tuple[str, ...] = ()


GRADERS: dict[str, Grader] = {
    "exact": Grader(factory="text_matches:exact"),
    "numeric": Grader(factory="numbers:numeric"),
    "contains": Grader(factory="text_matches:contains", revision=2),
    "normalised": Grader(factory="text_matches:normalised", revision=2),
    "f1": Grader(factory="text_matches:f1"),
    "regex": Grader(factory="text_matches:regex", revision=2),
    "multiple_choice": Grader(factory="choices:multiple_choice", revision=3),
    "math": Grader(factory="math_answers:math", revision=2, packages=("math-verify", "latex2sympy2-extended", "sympy")),
    "json_schema": Grader(factory="structured:json_schema", packages=("jsonschema",)),
    "reasoning_gym": Grader(factory="gym:reasoning_gym", packages=("reasoning-gym",)),
    "instructions": Grader(factory="instructions:instructions", packages=("lm-eval", "langdetect", "nltk")),
    "judge": Grader(factory=None),
    "reward_model": Grader(factory=None),
    "custom": Grader(factory="custom:custom"),
}


def load(spec: DatasetSpec) -> Score:
    """The grader of a dataset, ready: its packages are imported. Raises ConfigError where one is missing."""
    factory = GRADERS[spec.grader.name].factory
    if factory is None:
        raise ValueError(f"grader {spec.grader.name} does not run in a worker")
    module, _, name = factory.partition(":")
    try:
        made: Score = getattr(importlib.import_module(f"infra.grading.{module}"), name)(spec.grader, spec)
    except ImportError as error:
        raise ConfigError(
            f"dataset {spec.name}: grader {spec.grader.name} needs {error.name}, which is not installed"
        ) from None
    return made

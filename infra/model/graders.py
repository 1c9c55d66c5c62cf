"""How an answer is graded: one class a grader, whose fields are its settings. A secret is named by the variable that has it.

Only what can be checked without the grader's own packages is checked here; `infra.grading` has the graders themselves.
"""

from __future__ import annotations

import difflib
import re
import string
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

JUDGE_PROMPT = """You grade an answer to a question against the reference answer.

Question:
{prompt}

Reference answer:
{answer}

Answer to grade:
{response}

Is it right? Explain in a sentence or two, then end with a line "VERDICT: 1" if it is, or "VERDICT: 0" if it is not."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ExactGrader(_Settings):
    """The answer equals the row's, but for white space around them."""

    name: Literal["exact"] = "exact"


class NumericGrader(_Settings):
    """Both are the same number, within the larger of the two tolerances; thousands separators are ignored."""

    name: Literal["numeric"] = "numeric"
    rel_tol: float = Field(default=1e-9, ge=0, lt=1, description="tolerance as a share of the row's number")
    abs_tol: float = Field(default=1e-9, ge=0, description="tolerance")


class ContainsGrader(_Settings):
    """The row's answer is in the response's, whatever the case."""

    name: Literal["contains"] = "contains"


class NormalisedGrader(_Settings):
    """Both are equal without case, punctuation, articles and runs of white space, as SQuAD compares."""

    name: Literal["normalised"] = "normalised"


class F1Grader(_Settings):
    """Overlap of words: the harmonic mean of precision and recall, as SQuAD has it. Gives parts of 1."""

    name: Literal["f1"] = "f1"


class RegexGrader(_Settings):
    """The pattern is found in the answer."""

    name: Literal["regex"] = "regex"
    pattern: str | None = Field(default=None, description="regex; without it, the row's answer is one")
    whole: bool = Field(default=False, description="the pattern must match all of the answer")
    ignore_case: bool = Field(default=False, description="capitals do not matter")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        return _regex(pattern)


class MultipleChoiceGrader(_Settings):
    """The letter that the answer settles on is the row's. No letter: no answer."""

    name: Literal["multiple_choice"] = "multiple_choice"
    choices: str = Field(default="ABCD", pattern=r"^[A-Z]{2,26}$", description="the letters there are")


class MathGrader(_Settings):
    """Both are the same mathematical value, by the `math-verify` package. Nothing that can be read as one: no answer."""

    name: Literal["math"] = "math"
    strict: bool = Field(default=True, description="variables must have the same names, and a set is no tuple")
    digits: int = Field(default=6, ge=0, description="decimal places that floats are rounded to")


class JsonSchemaGrader(_Settings):
    """The answer is JSON (a fence of backticks around it is taken off) that the schema allows, by the `jsonschema` package."""

    name: Literal["json_schema"] = "json_schema"
    definition: dict[str, Any] | None = Field(default=None, description="a JSON schema; without it, the row's answer is one")

    @field_validator("definition")
    @classmethod
    def _is_a_schema(cls, definition: dict[str, Any] | None) -> dict[str, Any] | None:
        if definition is not None:
            from jsonschema.exceptions import SchemaError
            from jsonschema.validators import validator_for

            try:
                validator_for(definition).check_schema(definition)
            except SchemaError as error:
                raise ValueError(f"not a JSON schema: {error.message}") from None
        return definition


class ReasoningGymGrader(_Settings):
    """The family's own scorer says so; it may give parts of 1. Needs a `reasoning_gym` source."""

    name: Literal["reasoning_gym"] = "reasoning_gym"


class InstructionsGrader(_Settings):
    """The response follows the row's `instruction_id_list`, by the IFEval checks of the `lm-eval` package."""

    name: Literal["instructions"] = "instructions"
    strict: bool = Field(default=True, description="false: also without its first line, its last line, or asterisks")
    share: bool = Field(default=False, description="the share of instructions followed, and not all or nothing")


class _Remote(_Settings):
    api_key_variable: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable that holds the key, sent as a bearer token; set it where flows run",
    )
    deadline_s: float = Field(default=120.0, gt=0, description="for one grade, all retries together")
    concurrency: int = Field(default=16, ge=1, description="requests at a time")


class JudgeGrader(_Remote):
    """A language model gives the grade, over an OpenAI-compatible `/chat/completions`."""

    name: Literal["judge"] = "judge"
    url: str = Field(
        pattern=r"^https?://[^@?#]+$", description="what comes before /chat/completions, such as http://host:8000/v1"
    )
    model: str = Field(description="name of the model")
    prompt: str = Field(default=JUDGE_PROMPT, description="Python format string over prompt, answer and response")
    verdict_pattern: str = Field(
        default=r"VERDICT:\s*(\d+(?:\.\d+)?)", description="regex; group 1 of its last match is the grade, a number"
    )
    highest: float = Field(default=1.0, gt=0, description="the best grade; the reward is the grade over it")
    temperature: float = Field(default=0.0, ge=0, description="of the judge; 0: always its likeliest word")
    max_tokens: int = Field(default=1024, ge=1, description="longest judgement")

    @field_validator("verdict_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str) -> str:
        _regex(pattern)
        if not re.compile(pattern).groups:
            raise ValueError("needs a group that holds the grade")
        return pattern

    @field_validator("prompt")
    @classmethod
    def _can_be_filled(cls, prompt: str) -> str:
        names = {name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None}
        if unknown := names - {"prompt", "answer", "response"}:
            raise ValueError(
                f"has {{{min(unknown)}}}; it can have {{prompt}}, {{answer}} and {{response}}, other braces are doubled"
            )
        if "response" not in names:
            raise ValueError("has no {response}, so the judge would not see what it grades")
        return prompt


class RewardModelGrader(_Remote):
    """A server gives the grade: it is sent `prompt`, `response` and `label` as JSON, and answers a number or a mapping."""

    name: Literal["reward_model"] = "reward_model"
    url: str = Field(pattern=r"^https?://[^@]+$", description="where to POST")
    reward_key: str = Field(default="reward", description="key of the grade, if a mapping is answered")
    lowest: float = Field(default=0.0, description="the grade that is reward 0")
    highest: float = Field(default=1.0, description="the grade that is reward 1; what is not between them is an error")

    @model_validator(mode="after")
    def _is_a_range(self) -> RewardModelGrader:
        if not self.lowest < self.highest:
            raise ValueError(f"lowest {self.lowest:g} must be below highest {self.highest:g}")
        return self


class CustomGrader(_Settings):
    """A function of yours, sync or async, gives a number in [0, 1], a bool, a mapping with `reward_key`, or None: no answer.

    It is given those of `prompt`, `response`, `answer` and `row` that it has parameters for, by name.
    """

    name: Literal["custom"] = "custom"
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", description="package.module:function")
    reward_key: str = Field(default="reward", description="key of the grade, if the function returns a mapping")


GraderSettings = Annotated[
    ExactGrader
    | NumericGrader
    | ContainsGrader
    | NormalisedGrader
    | F1Grader
    | RegexGrader
    | MultipleChoiceGrader
    | MathGrader
    | JsonSchemaGrader
    | ReasoningGymGrader
    | InstructionsGrader
    | JudgeGrader
    | RewardModelGrader
    | CustomGrader,
    Field(discriminator="name"),
]
SETTINGS: tuple[type[_Settings], ...] = get_args(get_args(GraderSettings)[0])
GRADER_NAMES: tuple[str, ...] = tuple(kind.model_fields["name"].default for kind in SETTINGS)


def named(given: Any) -> Any:
    """What a suite says of a grader, with its name in its place: a name alone is the grader with its defaults.

    Raises ValueError for a name that there is not, with the nearest there is.
    """
    settings = {"name": given} if isinstance(given, str) else given
    if isinstance(settings, dict):
        name = settings.get("name")
        if name not in GRADER_NAMES:
            nearest = difflib.get_close_matches(str(name), GRADER_NAMES, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(GRADER_NAMES)}"
            raise ValueError(f"no grader is named {name!r}: {hint}")
    return settings


def or_a_name(schema: dict[str, Any]) -> None:
    """Lets a JSON schema say what `named` allows: Prefect checks a flow's parameters by it."""
    schema["anyOf"] = [*schema.pop("oneOf"), {"type": "string", "enum": list(GRADER_NAMES)}]


def _regex(pattern: str | None) -> str | None:
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
    return pattern

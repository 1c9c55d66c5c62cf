"""What an evaluation measures: datasets, how each is asked and graded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from infra.model.graders import ExactGrader, GraderSettings, named


class Sampling(BaseModel):
    """How responses are drawn. Temperature 0 is greedy."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1, description="-1 keeps all")
    min_p: float = Field(default=0.0, ge=0, le=1)
    max_new_tokens: int = Field(default=256, ge=1)
    stop: tuple[str, ...] = ()


class ReasoningGymSource(BaseModel):
    """A procedural task family of the `reasoning-gym` package; the same seed gives the same items."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    reasoning_gym: str = Field(description="name of the family, e.g. basic_arithmetic")
    size: int = Field(default=100, ge=1)
    seed: int = 0
    config: dict[str, float | int | bool | str | list[str] | list[int]] = {}


class DatasetSpec(BaseModel):
    """One dataset of a suite: where its rows are, how a row becomes a prompt, how a response is drawn and graded."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    source: str | ReasoningGymSource = Field(description="JSONL file (relative to the suite file), or a reasoning-gym family")
    prompt_key: str = "prompt"
    answer_key: str = "answer"
    prompt_pattern: str | None = Field(
        default=None, description="regex found in the row's prompt; its named groups are fields of prompt_template too"
    )
    prompt_template: str | None = Field(default=None, description="Python format string over the row's fields")
    apply_chat_template: bool = Field(default=False, description="render the prompt with the snapshot's chat template")
    answer_pattern: str | None = Field(default=None, description="regex; group 1, or the match, is the answer to grade")
    think_markers: tuple[str, str] | None = Field(
        default=("<think>", "</think>"), description="what opens and closes reasoning, in which no answer is looked for"
    )
    grader: GraderSettings = Field(default=ExactGrader(), description="a grader's name, or a mapping of name and settings")
    max_failed_share: float = Field(
        default=0.05, ge=0, le=1, description="the dataset has no score if more of its samples got no answer or no grade"
    )
    samples_per_prompt: int = Field(default=1, ge=1)
    limit: int | None = Field(default=None, ge=1, description="use only the first so many rows")
    sampling: Sampling = Sampling()

    @field_validator("grader", mode="before")
    @classmethod
    def _name_alone_is_a_grader(cls, grader: Any) -> Any:
        return named(grader)

    @field_validator("think_markers")
    @classmethod
    def _markers_can_be_found(cls, markers: tuple[str, str] | None) -> tuple[str, str] | None:
        if markers is not None and (not all(markers) or markers[0] == markers[1]):
            raise ValueError("must be two different texts, or null")
        return markers

    @field_validator("answer_pattern", "prompt_pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.grader.name == "reasoning_gym" and isinstance(self.source, str):
            raise ValueError("grader 'reasoning_gym' needs a reasoning_gym source")
        if self.prompt_pattern is not None and self.prompt_template is None:
            raise ValueError("prompt_pattern needs a prompt_template that uses its named groups")
        return self


class Suite(BaseModel):
    """What an evaluation measures. File sources are absolute paths once the suite has been loaded.

    Only a black box, which has data of its own, can do without datasets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    datasets: tuple[DatasetSpec, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [dataset.name for dataset in self.datasets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"dataset names used twice: {', '.join(twice)}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of a dataset, ready to be asked; `entry` is the row as it was read."""

    id: str
    prompt: str
    answer: str
    entry: dict[str, object]

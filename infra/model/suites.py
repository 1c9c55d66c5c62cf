"""What an evaluation measures: datasets, how each is asked and graded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from infra.model.graders import ExactGrader, GraderSettings, named, or_a_name

FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"


class Sampling(BaseModel):
    """How responses are drawn. Temperature 0 is greedy."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    temperature: float = Field(default=0.0, ge=0, description="0: always the likeliest token")
    top_p: float = Field(default=1.0, gt=0, le=1, description="likeliest tokens that make up this share; 1 keeps all")
    top_k: int = Field(default=-1, ge=-1, description="so many of the likeliest tokens; -1 keeps all")
    min_p: float = Field(default=0.0, ge=0, le=1, description="tokens at least this likely beside the likeliest; 0 keeps all")
    max_new_tokens: int = Field(default=256, ge=1, description="a response that is longer is cut there, and is truncated")
    stop: tuple[str, ...] = Field(default=(), description="texts that end a response")
    stop_token_ids: tuple[int, ...] = Field(default=(), description="tokens that end a response")
    sampling_seed: int | None = Field(default=None, ge=0, description="each sample draws with a seed of its own, made from it")

    def of_sample(self, problem_id: str, index: int) -> Sampling:
        """As it is for one sample: samples of one prompt, all drawn with one seed, would be one response many times."""
        if self.sampling_seed is None:
            return self
        named = f"{self.sampling_seed}\0{problem_id}\0{index}".encode(errors="surrogatepass")
        drawn = int.from_bytes(hashlib.blake2b(named, digest_size=4).digest()) >> 1  # what every engine takes: 31 bits
        return self.model_copy(update={"sampling_seed": drawn})


class ReasoningGymSource(BaseModel):
    """A procedural task family of the `reasoning-gym` package; the same seed gives the same items."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    reasoning_gym: str = Field(description="name of the family, e.g. basic_arithmetic")
    size: int = Field(default=100, ge=1, description="how many items are made")
    seed: int = Field(default=0, description="the same seed makes the same items")
    config: dict[str, float | int | bool | str | list[str] | list[int]] = Field(
        default={}, description="settings of the family, by name"
    )


class LmEvalSource(BaseModel):
    """The rows of an lm-eval task that generates, over local data: prompts and answers are what the task makes of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    lm_eval: str = Field(description="name of the task")
    include_path: str | None = Field(default=None, description="folder with the task's YAML file; default: lm-eval's own tasks")
    num_fewshot: int = Field(default=0, ge=0, description="examples before each question")


class FunctionSource(BaseModel):
    """A function that gives rows, mappings like those of a file; it must be importable where flows run."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    function: str = Field(pattern=FUNCTION, description="package.module:function")
    settings: dict[str, Any] = Field(default={}, description="what it is called with, by name")


_SOURCES: dict[str, type[BaseModel]] = {
    "reasoning_gym": ReasoningGymSource,
    "lm_eval": LmEvalSource,
    "function": FunctionSource,
}


def _kind_of(source: Any) -> str | None:
    if isinstance(source, Mapping):
        return next((kind.__name__ for key, kind in _SOURCES.items() if key in source), None)
    return type(source).__name__


Source = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[ReasoningGymSource, Tag("ReasoningGymSource")]
    | Annotated[LmEvalSource, Tag("LmEvalSource")]
    | Annotated[FunctionSource, Tag("FunctionSource")],
    Discriminator(
        _kind_of,
        custom_error_type="source",
        custom_error_message="a source is a file, or a mapping with reasoning_gym, lm_eval or function",
    ),
]


# Of a dataset, what says how fast and with whose key it is measured, and changes no question and no grade.
OPERATIONAL: dict[str, Any] = {"request_deadline_s": True, "grader": {"concurrency", "api_key_variable"}}


class Choices(BaseModel):
    """A row's right and wrong choices, under keys of their own, become letters in an order that is drawn for the row.

    The template has them as `choices`, a line each. The answer to grade is the right one's letter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    right: str = Field(description="key of a row that holds the right choice")
    wrong: tuple[str, ...] = Field(min_length=1, max_length=25, description="keys that hold the wrong ones")
    seed: int = Field(default=0, description="the same seed gives the same order")


OF_EVERY_POINT = ("step", "attempt", "lag_steps", "duration_seconds", "export_time_seconds")  # numbers of trackers, eval/NAME


class DatasetSpec(BaseModel):
    """One dataset of a suite: where its rows are, how a row becomes a prompt, how a response is drawn and graded."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="what its score is shown under")
    source: Source = Field(
        description="files (relative to the suite file), a reasoning-gym family, an lm-eval task, a function"
    )
    split: str | None = Field(default=None, description="which part of a folder that `datasets` saved with several")
    on_bad_row: Literal["fail", "skip"] = Field(default="fail", description="skip: rows that can't be used are counted")
    prompt_key: str = Field(default="prompt", description="of a row: its prompt, a text or chat messages")
    answer_key: str = Field(default="answer", description="of a row: the answer that a response is graded against")
    answer_key_pattern: str | None = Field(
        default=None, description="regex; group 1, or the match, in the row's answer is the answer to grade against"
    )
    choices: Choices | None = Field(
        default=None, title="Choices", description="keys of the right and the wrong choices, to be shuffled"
    )
    prompt_pattern: str | None = Field(
        default=None, description="regex found in the row's prompt; its named groups are fields of prompt_template too"
    )
    prompt_template: str | None = Field(default=None, description="Python format string over the row's fields")
    apply_chat_template: bool = Field(default=False, description="render the prompt with the snapshot's chat template")
    chat_template_kwargs: dict[str, Any] = Field(default={}, description="given to the template: enable_thinking, say")
    system_prompt: str | None = Field(default=None, description="the first message, where the row has no system message")
    tools_key: str | None = Field(default=None, description="key of a row that holds its tools: a list of JSON schemas")
    generate: str | None = Field(
        default=None, pattern=FUNCTION, description="package.module:function that asks in turns of its own; see Generate"
    )
    answer_pattern: str | None = Field(default=None, description="regex; group 1, or the match, is the answer to grade")
    think_markers: tuple[str, str] | None = Field(
        default=("<think>", "</think>"), description="what opens and closes reasoning, in which no answer is looked for"
    )
    stop_in_thinking: bool = Field(default=False, description="a stop text ends a response inside reasoning, too")
    grader: GraderSettings = Field(
        default=ExactGrader(), description="a grader's name, or a mapping of name and settings", json_schema_extra=or_a_name
    )
    max_failed_share: float = Field(
        default=0.05, ge=0, le=1, description="the dataset has no score if more of its samples got no answer or no grade"
    )
    samples_per_prompt: int = Field(default=1, ge=1, description="responses that are drawn for each prompt")
    request_deadline_s: float | None = Field(
        default=None, gt=0, description="for one request; default: 300, or more for many tokens, at 10 tokens a second"
    )
    limit: int | None = Field(default=None, ge=1, description="use only the first so many rows")
    sampling: Sampling = Field(default=Sampling(), title="Sampling", description="how responses are drawn")

    @field_validator("name")
    @classmethod
    def _is_no_number_of_every_point(cls, name: str) -> str:
        if name in OF_EVERY_POINT:
            raise ValueError(f"trackers have eval/{name} of every point already: call the dataset something else")
        return name

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

    @field_validator("answer_pattern", "answer_key_pattern", "prompt_pattern")
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
        if self.grader.name == "reasoning_gym" and not isinstance(self.source, ReasoningGymSource):
            raise ValueError("grader 'reasoning_gym' needs a reasoning_gym source")
        if self.prompt_pattern is not None and self.prompt_template is None:
            raise ValueError("prompt_pattern needs a prompt_template that uses its named groups")
        if self.choices is not None and self.prompt_template is None:
            raise ValueError("choices needs a prompt_template that shows {choices}")
        for name in ("system_prompt", "tools_key", "chat_template_kwargs"):
            if getattr(self, name) and not self.apply_chat_template:
                raise ValueError(f"{name} needs apply_chat_template: true, since the snapshot's template has its place")
        return self


class Suite(BaseModel):
    """What an evaluation measures. File sources are absolute paths once the suite has been loaded.

    Only a black box, which has data of its own, can do without datasets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="what its points are shown under")
    datasets: tuple[DatasetSpec, ...] = Field(default=(), description="measured side by side, each with a score of its own")

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [dataset.name for dataset in self.datasets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"dataset names used twice: {', '.join(twice)}")
        return self


Message = dict[str, Any]  # of a chat: `role`, `content` and what else the template reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One row of a dataset, ready to be asked; `entry` is the row as it was read. As a text, it is its prompt.

    Of a row with chat messages, `messages` are what is asked and `prompt` is the same for people and graders to read.
    """

    id: str
    prompt: str
    answer: str
    entry: dict[str, object]
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        return self.prompt

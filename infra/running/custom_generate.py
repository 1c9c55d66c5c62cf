"""A user's own function draws the response, in as many turns as it likes, and every turn is of the pinned version.

`generate: module:function` names an async function. It is given what it asks for by name: `engine` (a PinnedEngine), `problem`,
`prompt`, `row`, `sampling`, `index`, and gives the text to grade, or the Generation of its last turn.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from infra.engines.client import Generation
from infra.errors import ConfigError, EngineError, PinViolation
from infra.functions import function_of, parameters_of
from infra.model import Problem, Sampling
from infra.prompts import Render

GIVEN = ("engine", "problem", "prompt", "row", "sampling", "index")
Ask = Callable[[str, Sampling, str], Awaitable[Generation]]  # prompt, sampling, and what tells this turn's request from others


class GenerateFailed(Exception):
    """The function raised, or gave what is no response: its own sample has no answer."""


@dataclass(slots=True)
class PinnedEngine:
    """One engine, in the hands of a generate function: all turns of a sample are asked of it, so it remembers their prefix."""

    name: str
    render: (
        Render  # what the chat template of the snapshot makes of a problem, a user's message or a conversation, if it is used
    )
    sampling: Sampling
    _ask: Ask
    turns: list[Generation] = field(default_factory=list)
    last_prompt: str = ""
    violation: PinViolation | None = None
    _asked: int = 0

    async def generate(self, prompt: str, sampling: Sampling | None = None) -> Generation:
        """One turn: `prompt` is the whole text, as the engine is to see it."""
        number, self._asked = self._asked, self._asked + 1  # before it is waited for: several may be asked at once
        try:
            turn = await self._ask(prompt, sampling or self.sampling, str(number))
        except PinViolation as violation:
            self.violation = violation  # whatever the function makes of it
            raise
        self.last_prompt = prompt
        self.turns.append(turn)
        return turn


class CustomGenerate:
    def __init__(self, name: str) -> None:
        """Raises ConfigError for a function that is not there, is not async, or asks for what it is not given."""
        self.name = name
        self._function: Callable[..., Awaitable[Any]] = function_of(name, "generate")
        if not inspect.iscoroutinefunction(self._function):
            raise ConfigError(f"generate {name} must be an async function")
        self._wanted = parameters_of(self._function, GIVEN, "generate function", name)

    async def __call__(self, engine: PinnedEngine, problem: Problem, index: int) -> Generation:
        """Raises PinViolation if any turn was of another version, EngineError as the engine's, GenerateFailed."""
        given = {"engine": engine, "problem": problem, "prompt": problem.prompt, "row": problem.entry, "index": index}
        given["sampling"] = engine.sampling
        try:
            made = await self._function(**{name: given[name] for name in self._wanted})
        except (EngineError, PinViolation):
            raise
        except Exception as error:  # a user's code may raise anything, and one sample must not end the others
            if engine.violation is None:
                raise GenerateFailed(f"{self.name} raised {type(error).__name__}: {error}") from error
        if engine.violation is not None:
            raise engine.violation
        return self._response(engine, made)

    def _response(self, engine: PinnedEngine, made: Any) -> Generation:
        if not engine.turns:
            raise GenerateFailed(f"{self.name} gave a response without asking its engine")
        if not isinstance(made, str | Generation):
            raise GenerateFailed(f"{self.name} gave {type(made).__name__}: a response is a text, or a Generation")
        text = made if isinstance(made, str) else made.text
        versions = tuple(version for turn in engine.turns for version in turn.weight_versions)
        tokens = sum(turn.completion_tokens for turn in engine.turns)
        return replace(engine.turns[-1], text=text, weight_versions=versions, completion_tokens=tokens)

"""Generate functions, as a suite names them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from infra.engines.client import Generation
from infra.errors import PinViolation
from infra.model import Problem
from infra.running.custom_generate import PinnedEngine


async def two_turns(engine: PinnedEngine, prompt: str) -> Generation:
    first = await engine.generate(prompt)
    return await engine.generate(f"{prompt}{first.text} again: ")


async def last_text(engine: PinnedEngine, problem: Problem, row: dict[str, Any], index: int) -> str:
    turn = await engine.generate(engine.render(problem))
    return f"{row['prefix']}{turn.text} {index}"


async def hides_violations(engine: PinnedEngine, prompt: str) -> str:
    await engine.generate(prompt)
    with suppress(PinViolation):
        await engine.generate(prompt)
    return "7"


async def raises_on_one(engine: PinnedEngine, prompt: str) -> Generation:
    if prompt.startswith("3+"):
        raise KeyError("no such tool")
    return await engine.generate(prompt)


async def asks_nobody(engine: PinnedEngine) -> str:
    return f"I am not {engine.name}"


async def gives_a_number(engine: PinnedEngine, prompt: str) -> int:
    return len((await engine.generate(prompt)).text)


def not_async(engine: PinnedEngine) -> str:
    return engine.name


async def wants_more(engine: PinnedEngine, secret: str) -> str:
    return secret


async def votes(engine: PinnedEngine, prompt: str) -> str:
    turns = await asyncio.gather(*(engine.generate(prompt) for _ in range(4)))
    return turns[-1].text

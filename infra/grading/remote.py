"""A grade from another server is asked for until it comes or its deadline passes; a server in trouble is not a wrong answer.

Too many requests (429), errors of the server (5xx) and connections that fail are tried again, later each time.
Wire formats: OpenAI's `POST /chat/completions` (platform.openai.com/docs/api-reference/chat), and for reward models the
`prompt`, `response`, `label` of Miles' and slime's `remote_rm`.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import aiohttp
import orjson

from infra.errors import ConfigError, GraderError, GraderTimeout
from infra.grading.custom import reward_in
from infra.model import Problem
from infra.model.graders import JudgeGrader, RewardModelGrader

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
LONGEST_BODY = 4 * 1024 * 1024
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
Settings = JudgeGrader | RewardModelGrader


class RemoteGraders:
    """One HTTP session for all of them; whoever makes it closes it."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def check(self, settings: Settings) -> None:
        """Raises ConfigError if the key is not there."""
        _key(settings)

    async def judge(self, settings: JudgeGrader, problem: Problem, answer: str) -> str:
        """What the judge says, as it says it. Raises GraderTimeout, GraderError."""
        content = settings.prompt.format(prompt=problem.prompt, answer=problem.answer, response=answer)
        body = {
            "model": settings.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
        }
        reply = await self._asked(settings, settings.url.rstrip("/") + "/chat/completions", body)
        try:
            return str(reply["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError):
            raise GraderError(f"the judge's answer is not a chat completion: {str(reply)[:200]}") from None

    async def reward(self, settings: RewardModelGrader, problem: Problem, answer: str) -> float:
        """Raises GraderTimeout, GraderError."""
        reply = await self._asked(
            settings, settings.url, {"prompt": problem.prompt, "response": answer, "label": problem.answer}
        )
        try:
            grade = reward_in(reply, settings.reward_key)
        except (KeyError, TypeError, ValueError) as error:
            raise GraderError(f"the reward model's answer has no grade: {error}") from None
        if grade is None:
            raise GraderError(f"the reward model's answer has no grade: {str(reply)[:200]}")
        return (grade - settings.lowest) / (settings.highest - settings.lowest)

    async def _asked(self, settings: Settings, url: str, body: dict[str, Any]) -> Any:
        try:
            data = orjson.dumps(body)
        except (TypeError, ValueError) as error:
            raise GraderError(f"can't be sent: {error}") from None
        failure = "no answer yet"
        try:
            async with (
                self._turns.setdefault(url, asyncio.Semaphore(settings.concurrency)),
                asyncio.timeout(settings.deadline_s),
            ):
                pause = FIRST_PAUSE_S
                while True:
                    reply, failure, wait = await self._once(settings, url, data)
                    if not failure:
                        return reply
                    await asyncio.sleep(max(wait, pause * random.uniform(0.5, 1.0)))
                    pause = min(2 * pause, LONGEST_PAUSE_S)
        except TimeoutError:
            raise GraderTimeout(f"{url} gave no grade within {settings.deadline_s:g} s; the last try: {failure}") from None

    async def _once(self, settings: Settings, url: str, data: bytes) -> tuple[Any, str, float]:
        """The answer; or why there is none yet, and how many seconds the server asks for."""
        headers = {"Content-Type": "application/json", **_key(settings)}
        try:
            async with self._connected().post(url, data=data, headers=headers, allow_redirects=False) as response:
                content = await _body(response)
                status, later = response.status, response.headers.get("Retry-After", "")
        except aiohttp.ClientError as error:
            return None, f"{type(error).__name__}: {error}", 0.0
        if status in AGAIN:
            return None, f"status {status}", float(later) if later.isdecimal() else 0.0
        if status != 200:
            raise GraderError(f"{url} answered {status}: {content[:200].decode(errors='replace')}")
        try:
            return orjson.loads(content), "", 0.0
        except orjson.JSONDecodeError:
            raise GraderError(f"{url} answered what is no JSON: {content[:200].decode(errors='replace')}") from None

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            unlimited = aiohttp.ClientTimeout(total=None)  # the deadline is around all tries
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=unlimited)
        return self._session


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """All of it, in however many pieces it comes, up to `LONGEST_BODY`."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > LONGEST_BODY:
            raise GraderError(f"{response.url} answered with more than {LONGEST_BODY} bytes")
    return bytes(body)


def _key(settings: Settings) -> dict[str, str]:
    if settings.api_key_variable is None:
        return {}
    key = os.environ.get(settings.api_key_variable, "").strip()
    if not key:
        raise ConfigError(
            f"grader {settings.name}: set {settings.api_key_variable} to its key, in the environment where flows run"
        )
    return {"Authorization": f"Bearer {key}"}

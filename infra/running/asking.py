"""One sample is asked until an engine of the pinned version has answered it, or three could not; then it is graded.

An engine that says that it has too much to do has not failed: it is asked again later, as long as answers come at all. A
request has a deadline, and counts against its engine's room; a grade does not, so engines work while answers are graded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from infra.engines.client import Generation
from infra.errors import EngineDead, EngineError, EngineRefused, EngineTimeout, GraderError, GraderTimeout, PinViolation
from infra.grading.answers import opened_by_prompt
from infra.grading.pool import GraderPool
from infra.model import DatasetSpec, Problem, Sample, SampleOutcome, Sampling
from infra.prompts import ChatTemplate, Render
from infra.roster import Engine, EngineLost, Roster
from infra.running.clients import Clients
from infra.running.custom_generate import CustomGenerate, GenerateFailed, PinnedEngine
from infra.running.load import HASTE, Gates
from infra.running.order import Feed, Item
from infra.running.thinking import response_to

logger = logging.getLogger(__name__)
REQUEST_TIMEOUT_S = 300.0  # at least
SLOWEST_TOKENS_S = 10.0  # of one response among many
ATTEMPTS = 3  # of one sample, each on another engine if there is one
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0  # before engines that have too much to do are asked the same again
PATIENCE_S = 120.0  # at least, with engines that have too much to do, since any of them answered
# Answers that any engine of this version would give again. Not a wrong key (401), a wrong address (404) or haste (429).
REQUEST_AT_FAULT = frozenset({400, 413, 422})
Record = Callable[[Sample], None]


@dataclass(frozen=True, slots=True)
class _Answered:
    """`prompt` is the whole text that the engine was given last."""

    engine: str
    prompt: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class _Failed:
    """No answer; another engine may have one, unless the request is itself `at_fault`."""

    detail: str
    at_fault: bool = False
    haste: bool = False


class Asker:
    """What the workers of one dataset have in common; `record` gets each sample as it is finished."""

    def __init__(
        self, roster: Roster, spec: DatasetSpec, clients: Clients, pool: GraderPool, render: Render, feed: Feed, record: Record
    ) -> None:
        self.roster, self.spec, self.clients, self.pool, self.render = roster, spec, clients, pool, render
        self.feed, self.record = feed, record
        self.sent = render.sent if isinstance(render, ChatTemplate) else str
        self.pinned = roster.pinned
        self.expected = self.pinned.token
        self.gates = Gates.of(roster)
        self.generate = CustomGenerate(spec.generate) if spec.generate else None
        self.timeout_s = spec.request_deadline_s or time_for(spec.sampling)
        self.failed = 0  # infra_error samples
        self.unanswered: str | None = None  # why the first was, that was not itself at fault

    async def work(self, lane: int) -> None:
        """Takes from its engine's lane, one sample at a time, whenever the engine has room, until nothing is left."""
        while True:
            engine = await self.roster.engine(lane)
            if engine is None:
                if (item := self.feed.next(lane)) is None:
                    return
                self.record(self._without_answer(item, _Failed("no engine was left to ask")))
                await asyncio.sleep(0)
                continue
            async with self.gates[engine.base_url]:
                if not self.roster.may_ask(engine):
                    continue  # it was lost while we waited for room
                if (item := self.feed.next(lane)) is None:
                    return
                asked = await self._ask(engine, item, 0)
            if isinstance(asked, _Failed):
                asked = await self._ask_others(lane, item, asked)
            self.record(await self._graded(item, asked) if isinstance(asked, _Answered) else self._without_answer(item, asked))

    async def _ask_others(self, lane: int, item: Item, asked: _Answered | _Failed) -> _Answered | _Failed:
        failures, pause, turn = 0, FIRST_PAUSE_S, 0
        while isinstance(asked, _Failed) and not asked.at_fault:
            if asked.haste:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE_S)
            if not (asked.haste and self._answers_come()):
                failures += 1
            if failures == ATTEMPTS:
                break
            turn += 1
            engine = await self.roster.engine(lane + turn)
            if engine is None:
                break
            async with self.gates[engine.base_url]:
                asked = await self._ask(engine, item, turn)
        return asked

    def _answers_come(self) -> bool:
        """Whether any engine answered lately, as measured by how long one answer may take."""
        return time.monotonic() - self.gates.answered_at < max(PATIENCE_S, self.timeout_s)

    async def _ask(self, engine: Engine, item: Item, attempt: int) -> _Answered | _Failed:
        """Raises PinViolation for an answer that is not of the pinned version alone."""
        problem, index = item
        rid = _sendable(f"{self.expected}/{self.spec.name}/{problem.id}/{index}/{attempt}")
        try:
            with self.roster.asking(engine):
                return await self._answer(engine, problem, index, rid)
        except UnicodeEncodeError as error:
            return _Failed(f"a prompt that is no Unicode text: {error}", at_fault=True)
        except GenerateFailed as error:
            return _Failed(str(error), at_fault=True)
        except (EngineError, EngineLost) as error:
            status = error.status if isinstance(error, EngineRefused) else 0
            if status not in REQUEST_AT_FAULT:
                logger.log(logging.DEBUG if status in HASTE else logging.WARNING, "%s: %s", rid, error)
            if isinstance(error, EngineTimeout) or status in HASTE:
                self.gates[engine.base_url].ease()
            if isinstance(error, EngineDead | EngineTimeout):
                await self.roster.suspect(engine, str(error))
            return _Failed(str(error), at_fault=status in REQUEST_AT_FAULT, haste=status in HASTE)

    async def _answer(self, engine: Engine, problem: Problem, index: int, rid: str) -> _Answered:
        client = await self.clients.of(engine)
        sampling = self.spec.sampling.of_sample(problem.id, index)

        async def turn(prompt: str, sampling: Sampling, number: str) -> Generation:
            own = f"{rid}/{number}" if number else rid
            generation = await client.generate(
                self.sent(prompt), sampling, rid=own, timeout_s=self.timeout_s, cache_key=self.pinned.cache_key
            )
            self.gates.answered_at = time.monotonic()
            self._check(generation, engine.name, own)
            if generation.finish == "abort":  # half a text is no turn; whoever ends requests ends them for now
                raise EngineRefused("aborted", engine=engine.base_url, status=200)
            return generation

        if self.generate is None:
            prompt = self.render(problem)
            return _Answered(engine.name, prompt, await response_to(prompt, self.spec, sampling, turn))
        pinned_engine = PinnedEngine(engine.name, self.render, sampling, turn)
        generation = await self.generate(pinned_engine, problem, index)
        return _Answered(engine.name, pinned_engine.last_prompt, generation)

    def _check(self, generation: Generation, engine: str, rid: str) -> None:
        if set(generation.weight_versions) != {self.expected}:
            got = " then ".join(generation.weight_versions) or "none"
            raise PinViolation(
                f"engine {engine} answered {rid} with version {got}, pinned is {self.expected}",
                expected=self.expected,
                reported={engine: got},
            )

    def _without_answer(self, item: Item, failed: _Failed) -> Sample:
        """If the request was at fault, it says which problem's it was."""
        detail = f"problem {item[0].id!r}: {failed.detail}" if failed.at_fault else failed.detail
        if failed.at_fault:
            logger.warning("%s/%s: %s", self.expected, self.spec.name, detail)
        self._note(None if failed.at_fault else detail)
        return _sample(item, None, SampleOutcome.INFRA_ERROR, None, detail)

    def _note(self, unanswered: str | None) -> None:
        self.failed += 1
        self.unanswered = unanswered if self.unanswered is None else self.unanswered

    async def _graded(self, item: Item, answered: _Answered) -> Sample:
        generation = answered.generation
        try:
            response = opened_by_prompt(answered.prompt, generation.text, self.spec.think_markers)
            grade = await self.pool.grade(self.spec, item[0], response)
        except GraderError as error:
            timed_out = isinstance(error, GraderTimeout)
            outcome = SampleOutcome.GRADER_TIMEOUT if timed_out else SampleOutcome.GRADER_ERROR
            return _sample(item, answered, outcome, None, str(error))
        if not math.isfinite(grade.reward) or not 0 <= grade.reward <= 1:
            detail = f"the grader gave {grade.reward}, which is not in [0, 1]"
            return _sample(item, answered, SampleOutcome.GRADER_ERROR, None, detail)
        outcome = SampleOutcome.OK if grade.answer is not None else SampleOutcome.NO_ANSWER
        if generation.finish == "length":
            outcome = SampleOutcome.TRUNCATED
        return _sample(item, answered, outcome, grade.reward, "")


def time_for(sampling: Sampling) -> float:
    """Seconds that a request may take: a response of many tokens takes long, and the longest are not to be missed."""
    return max(REQUEST_TIMEOUT_S, sampling.max_new_tokens / SLOWEST_TOKENS_S)


def _sample(item: Item, answered: _Answered | None, outcome: SampleOutcome, reward: float | None, detail: str) -> Sample:
    problem, index = item
    generation = answered.generation if answered else None
    return Sample(
        problem_id=problem.id,
        index=index,
        prompt=_sendable(problem.prompt),
        response=generation.text if generation else "",
        answer=problem.answer,
        outcome=outcome,
        reward=reward,
        weight_versions=generation.weight_versions if generation else (),
        engine=answered.engine if answered else "",
        completion_tokens=generation.completion_tokens if generation else 0,
        detail=detail[:500],
        finish=generation.finish if generation else "",
    )


def _sendable(text: str) -> str:
    """`text` with half a surrogate pair, which no encoding of Unicode has, written as its escape."""
    return text.encode(errors="backslashreplace").decode()

"""Every sample is asked of a pinned engine and carries the version that the engine itself put on it.

A response of a foreign version, or of two, is a PinViolation: the point has no number. A request that an engine could not
answer is tried on another engine of the same version, then becomes an `infra_error` sample, which is not a zero. One that
is itself at fault becomes that at once; if all of a dataset are, its prompts are what has to be mended.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack

from infra.concurrency import gather_all
from infra.engines.client import EngineClient, Generation
from infra.errors import (
    DatasetError,
    EngineDead,
    EngineError,
    EngineRefused,
    EngineTimeout,
    FleetUnhealthy,
    GraderError,
    GraderTimeout,
    PinViolation,
)
from infra.grading.answers import opened_by_prompt
from infra.grading.pool import GRADE_DEADLINE_S, GraderPool
from infra.model import DatasetSpec, Pinned, Problem, Sample, SampleOutcome
from infra.roster import Engine, EngineLost, Roster

logger = logging.getLogger(__name__)
REQUEST_TIMEOUT_S = 300.0
REQUESTS_PER_ENGINE = 64
ATTEMPTS = 3  # of one sample, each on another engine if there is one
# Answers that any engine of this version would give again. Not a wrong key (401), a wrong address (404) or haste (429).
REQUEST_AT_FAULT = frozenset({400, 413, 422})
Render = Callable[[str], str]


async def run_samples(
    pinned: Pinned, spec: DatasetSpec, problems: Sequence[Problem], render: Render, roster: Roster | None = None
) -> list[Sample]:
    """All samples of all problems, in order of problem and index; `roster` says which engines may be asked.

    Raises:
        PinViolation: any response that is not of the pinned version alone.
        DatasetError: every request was refused for what it asks, a prompt longer than the model's context for one.
        FleetUnhealthy: no engine answered a single request.
        ConfigError: the grader can't be loaded; nothing has been asked.
    """
    async with AsyncExitStack() as stack:
        clients = _Clients(stack, pinned.api_key)
        pool = await stack.enter_async_context(GraderPool(deadline_s=GRADE_DEADLINE_S))
        await pool.ready(spec)
        roster = roster or Roster(pinned)
        asker = _Asker(roster, spec, clients, pool, render)
        queues = [_share(problems, spec.samples_per_prompt, i, len(roster)) for i in range(len(roster))]
        workers = [asker.work(queues[i], i) for i in range(len(roster)) for _ in range(REQUESTS_PER_ENGINE)]
        done = list(itertools.chain.from_iterable(await gather_all(workers)))
    if all(sample.outcome is SampleOutcome.INFRA_ERROR for sample in done):
        unanswered = [sample.detail for sample in done if (sample.problem_id, sample.index) not in asker.refused]
        if not unanswered:
            raise DatasetError(f"all {len(done)} requests were refused, the first because of {done[0].detail}", path=spec.name)
        raise FleetUnhealthy(f"dataset {spec.name}: no engine answered: {unanswered[0]}")
    order = {problem.id: position for position, problem in enumerate(problems)}
    return sorted(done, key=lambda sample: (order[sample.problem_id], sample.index))


def _share(problems: Sequence[Problem], samples: int, engine: int, engines: int) -> Iterator[tuple[Problem, int]]:
    """The work of one engine: all samples of a problem stay on it, so that their common prefix is computed once."""
    return ((problem, index) for problem in problems[engine::engines] for index in range(samples))


class _Clients:
    """One client an engine process, opened when it is first asked and closed with `stack`."""

    def __init__(self, stack: AsyncExitStack, api_key: str) -> None:
        self._stack, self._api_key = stack, api_key
        self._opened: dict[str, EngineClient] = {}

    async def of(self, engine: Engine) -> EngineClient:
        if engine.base_url not in self._opened:
            client = EngineClient(engine.base_url, self._api_key)
            self._opened[engine.base_url] = client  # before the await: others may ask meanwhile
            await self._stack.enter_async_context(client)
        return self._opened[engine.base_url]


class _Asker:
    """What the workers of one dataset have in common."""

    def __init__(self, roster: Roster, spec: DatasetSpec, clients: _Clients, pool: GraderPool, render: Render) -> None:
        self.roster, self.spec, self.clients, self.pool, self.render = roster, spec, clients, pool, render
        self.pinned = roster.pinned
        self.expected = self.pinned.token
        self.refused: set[tuple[str, int]] = set()

    async def work(self, queue: Iterator[tuple[Problem, int]], engine: int) -> list[Sample]:
        """Takes from the engine's queue, one request at a time, until it is empty."""
        return [await self._sample(problem, index, engine) for problem, index in queue]

    async def _sample(self, problem: Problem, index: int, engine: int) -> Sample:
        failure = "no engine was left to ask"
        for attempt in range(ATTEMPTS):
            chosen = await self.roster.engine(engine + attempt)
            if chosen is None:
                break
            rid = _sendable(f"{self.expected}/{self.spec.name}/{problem.id}/{index}/{attempt}")
            try:
                generation = await self._asked(chosen, problem, rid)
            except UnicodeEncodeError as error:
                return self._refused(problem, index, f"a prompt that is no Unicode text: {error}")
            except (EngineError, EngineLost) as error:
                if isinstance(error, EngineRefused) and error.status in REQUEST_AT_FAULT:
                    return self._refused(problem, index, str(error))
                failure = str(error)
                logger.warning("%s: %s", rid, error)
                if isinstance(error, EngineDead | EngineTimeout):
                    await self.roster.suspect(chosen, failure)
                continue
            self._check(generation, chosen.name, rid)
            return await self._graded(problem, index, chosen.name, generation)
        return self._record(problem, index, "", None, SampleOutcome.INFRA_ERROR, None, failure)

    async def _asked(self, engine: Engine, problem: Problem, rid: str) -> Generation:
        client = await self.clients.of(engine)
        with self.roster.asking(engine):
            return await client.generate(
                self.render(problem.prompt),
                self.spec.sampling,
                rid=rid,
                timeout_s=REQUEST_TIMEOUT_S,
                cache_key=self.pinned.cache_key,
            )

    def _refused(self, problem: Problem, index: int, reason: str) -> Sample:
        """The request is at fault, so no other engine is asked."""
        self.refused.add((problem.id, index))
        detail = f"problem {problem.id!r}: {reason}"
        logger.warning("%s/%s: %s", self.expected, self.spec.name, detail)
        return self._record(problem, index, "", None, SampleOutcome.INFRA_ERROR, None, detail)

    def _check(self, generation: Generation, engine: str, rid: str) -> None:
        if set(generation.weight_versions) != {self.expected}:
            got = " then ".join(generation.weight_versions) or "none"
            raise PinViolation(
                f"engine {engine} answered {rid} with version {got}, pinned is {self.expected}",
                expected=self.expected,
                reported={engine: got},
            )

    async def _graded(self, problem: Problem, index: int, engine: str, generation: Generation) -> Sample:
        if generation.finish == "abort":
            return self._record(problem, index, engine, generation, SampleOutcome.INFRA_ERROR, None, "aborted")
        try:
            response = opened_by_prompt(self.render(problem.prompt), generation.text, self.spec.think_markers)
            grade = await self.pool.grade(self.spec, problem, response)
        except GraderError as error:
            timed_out = isinstance(error, GraderTimeout)
            outcome = SampleOutcome.GRADER_TIMEOUT if timed_out else SampleOutcome.GRADER_ERROR
            return self._record(problem, index, engine, generation, outcome, None, str(error))
        if not math.isfinite(grade.reward) or not 0 <= grade.reward <= 1:
            detail = f"the grader gave {grade.reward}, which is not in [0, 1]"
            return self._record(problem, index, engine, generation, SampleOutcome.GRADER_ERROR, None, detail)
        outcome = SampleOutcome.OK if grade.answer is not None else SampleOutcome.NO_ANSWER
        if generation.finish == "length":
            outcome = SampleOutcome.TRUNCATED
        return self._record(problem, index, engine, generation, outcome, grade.reward, "")

    def _record(
        self,
        problem: Problem,
        index: int,
        engine: str,
        generation: Generation | None,
        outcome: SampleOutcome,
        reward: float | None,
        detail: str,
    ) -> Sample:
        return Sample(
            problem_id=problem.id,
            index=index,
            prompt=_sendable(problem.prompt),
            response=generation.text if generation else "",
            answer=problem.answer,
            outcome=outcome,
            reward=reward,
            weight_versions=generation.weight_versions if generation else (),
            engine=engine,
            completion_tokens=generation.completion_tokens if generation else 0,
            detail=detail[:500],
        )


def _sendable(text: str) -> str:
    """`text` with half a surrogate pair, which no encoding of Unicode has, written as its escape."""
    return text.encode(errors="backslashreplace").decode()

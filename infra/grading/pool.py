"""A grader can hang, crash or raise, and only its own sample is the worse for it.

Extraction (a user's regular expression) and grading run in worker processes that are killed at their deadline; a grade that
comes over HTTP has a deadline of its own. A sample whose grade is not known has no reward; zero is only for an answer that was
graded wrong, or that the model did not give.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from infra.errors import ConfigError, GraderError
from infra.grading.answers import Grade
from infra.grading.remote import RemoteGraders
from infra.grading.work import Extraction, Grading, Loading, Verdict, Work
from infra.grading.worker_pool import WorkerPool
from infra.model import DatasetSpec, Problem
from infra.model.graders import JudgeGrader, RewardModelGrader

GRADE_DEADLINE_S = 20.0
WORKERS = max(2, min(4, (os.cpu_count() or 2) // 2))  # one that hangs must leave another


class GraderPool:
    """Grades samples of any dataset; use as an async context manager."""

    def __init__(self, workers: int = WORKERS, deadline_s: float = GRADE_DEADLINE_S) -> None:
        self._workers = WorkerPool(workers, deadline_s)
        self._remote = RemoteGraders()
        self._packed: dict[tuple[Any, int], tuple[Any, bytes]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._workers.__aexit__(kind, error, trace)
        await self._remote.close()

    async def ready(self, spec: DatasetSpec) -> None:
        """Makes the dataset's grader ready. Raises ConfigError, saying why, if nothing could be graded."""
        try:
            if isinstance(spec.grader, JudgeGrader | RewardModelGrader):
                self._remote.check(spec.grader)
            else:
                await self._work(Loading, spec, None)
        except GraderError as error:
            raise ConfigError(f"dataset {spec.name}: {error}") from None

    async def grade(self, spec: DatasetSpec, problem: Problem, response: str) -> Grade:
        """Raises GraderTimeout (the worker has been killed) or GraderError with what the grader raised."""
        try:
            if isinstance(spec.grader, JudgeGrader | RewardModelGrader):
                return await self._from_elsewhere(spec, spec.grader, problem, response)
            graded: Grade = await self._work(Grading, spec, (problem, response))
        except GraderError as error:
            raise type(error)(f"{problem.id}: {error}") from error
        return graded

    async def _from_elsewhere(
        self, spec: DatasetSpec, settings: JudgeGrader | RewardModelGrader, problem: Problem, response: str
    ) -> Grade:
        answer = await self._work(Extraction, spec, response)
        if answer is None:
            return Grade(answer=None, reward=0.0)
        if isinstance(settings, JudgeGrader):
            judged = await self._remote.judge(settings, problem, answer)
            return Grade(answer=answer, reward=await self._work(Verdict, settings, judged))
        return Grade(answer=answer, reward=await self._remote.reward(settings, problem, answer))

    async def _work(self, kind: Callable[[Any], Work], settings: Any, item: Any) -> Any:
        """The pickle of each work is made once: workers tell works apart by it."""
        _, packed = self._packed.setdefault((kind, id(settings)), (settings, b""))
        if not packed:
            packed = pickle.dumps(kind(settings))
            self._packed[kind, id(settings)] = (settings, packed)
        return await self._workers.run(packed, item)

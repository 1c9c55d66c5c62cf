"""Problems come one at a time, in the order of the source, as many as are wanted; memory holds only what the caller keeps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from infra.datasets.files import file_rows
from infra.datasets.functions import function_rows
from infra.datasets.gym import gym_rows
from infra.datasets.harness import task_rows
from infra.datasets.problems import problem_of
from infra.datasets.rows import Row, Rows
from infra.errors import DatasetError
from infra.model import DatasetSpec, FunctionSource, LmEvalSource, Problem, ReasoningGymSource

logger = logging.getLogger(__name__)
NAMED_BAD_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDataset:
    """`bad_rows` are those that were passed over, with their places: none unless the dataset says `on_bad_row: skip`."""

    problems: list[Problem]
    bad_rows: tuple[DatasetError, ...]


def load_dataset(spec: DatasetSpec) -> LoadedDataset:
    """All problems of a dataset, and the rows that were passed over, of which the log names the first.

    Raises as `read_problems`.
    """
    bad: list[DatasetError] = []
    problems = list(read_problems(spec, bad.append))
    for error in bad[:NAMED_BAD_ROWS]:
        logger.warning("dataset %s: passed over: %s", spec.name, error)
    if bad:
        logger.warning("dataset %s: %d bad rows passed over, %d problems kept", spec.name, len(bad), len(problems))
    return LoadedDataset(problems=problems, bad_rows=tuple(bad))


def load_problems(spec: DatasetSpec) -> list[Problem]:
    """The problems alone. Raises as `read_problems`."""
    return load_dataset(spec).problems


def read_problems(spec: DatasetSpec, passed_over: Callable[[DatasetError], None] | None = None) -> Iterator[Problem]:
    """The problems of a dataset, in order, one in memory at a time; reads no further than `limit`.

    `passed_over` hears of each row that can't be used, if the dataset says `on_bad_row: skip`.

    Raises:
        DatasetError: what is missing or holds no usable row; a row that can't be used, with its place.
        ConfigError: a family, task, function or setting that does not exist; a package that is not installed.
        StoreError: an object store that does not give its files.
    """
    taken, seen, bad = 0, set[str](), 0
    with closing(_rows(spec)) as rows:
        for number, row in enumerate(rows, 1):
            try:
                problem = _problem(spec, row, number, seen)
            except DatasetError as error:
                if spec.on_bad_row == "fail":
                    raise
                bad += 1
                if passed_over is not None:
                    passed_over(error)
                continue
            seen.add(problem.id)
            yield problem
            taken += 1
            if taken == spec.limit:
                return
    if not taken:
        raise DatasetError(f"holds no rows{f' that can be used, and {bad} that can not' if bad else ''}", path=called(spec))


def called(spec: DatasetSpec) -> str:
    """A source as people know it."""
    match spec.source:
        case ReasoningGymSource():
            return f"reasoning-gym {spec.source.reasoning_gym}"
        case LmEvalSource():
            return f"lm-eval {spec.source.lm_eval}"
        case FunctionSource():
            return spec.source.function
        case _:
            return spec.source


def _problem(spec: DatasetSpec, row: Row | DatasetError, number: int, seen: set[str]) -> Problem:
    if isinstance(row, DatasetError):
        raise row
    problem = problem_of(spec, row, number)
    if problem.id in seen:
        raise row.bad(f"id {problem.id!r} is used twice")
    return problem


def _rows(spec: DatasetSpec) -> Rows:
    match spec.source:
        case ReasoningGymSource():
            return gym_rows(spec.name, spec.source, called(spec), spec.limit)
        case LmEvalSource():
            return task_rows(spec.name, spec.source, called(spec))
        case FunctionSource():
            return function_rows(spec.name, spec.source)
        case _:
            return file_rows(spec.source, spec.split)

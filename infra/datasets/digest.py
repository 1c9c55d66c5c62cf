"""A suite's digest changes with whatever can change a score, and not with where its data lies or in which format.

One pass over the data, a problem in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import xxhash

from infra.datasets.loading import read_problems
from infra.functions import source_of
from infra.grading.versions import version_of
from infra.model import DatasetSpec, Problem, ReasoningGymSource, Suite
from infra.model.suites import OPERATIONAL

WHERE = {"split", "on_bad_row"}  # and the source, unless its family grades


def suite_digest(suite: Suite) -> str:
    """Of a suite whose data is as it is now. Raises as `dataset_digest`, and as `read_problems`."""
    return digest_of(dataset_digest(spec, read_problems(spec)) for spec in suite.datasets)


def digest_of(datasets: Iterable[str]) -> str:
    """That of a suite, of those of its datasets in their order."""
    return xxhash.xxh3_128_hexdigest(" ".join(datasets).encode())


def dataset_digest(spec: DatasetSpec, problems: Iterable[Problem]) -> str:
    """xxh3-128 over how a dataset is asked and graded, and over the content of its rows.

    Graders count by their versions, those of their packages, and the content of a user's module; so does a module that
    generates. Raises ConfigError if one is missing.
    """
    digest = xxhash.xxh3_128()
    where = WHERE if isinstance(spec.source, ReasoningGymSource) else {*WHERE, "source"}
    digest.update(spec.model_dump_json(exclude={**dict.fromkeys(where, True), **OPERATIONAL}).encode())
    digest.update(version_of(spec.grader).encode())
    if spec.generate is not None:
        digest.update(source_of(spec.generate, "generate").read_bytes())
    for problem in problems:
        digest.update(_content(problem))
    return digest.hexdigest()


def _content(problem: Problem) -> bytes:
    parts = [problem.id, problem.prompt, problem.answer, problem.messages, problem.tools, problem.entry]
    return json.dumps([_plain(part) for part in parts], sort_keys=True).encode()


def _plain(value: Any) -> Any:
    """As every format gives it: without what has no value. What JSON does not have is a text, or counts by its type alone."""
    if isinstance(value, dict):
        return {str(key): _plain(held) for key, held in value.items() if held is not None}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):
        return value.hex()
    said = str(value)
    return type(value).__name__ if " at 0x" in said else said

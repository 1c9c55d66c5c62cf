"""A dataset is read whole and checked before anything is asked of an engine; a row that can't be used is named.

Sources: JSONL files, and the procedural families of the `reasoning-gym` package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import xxhash

from infra.errors import ConfigError, DatasetError
from infra.grading.versions import version_of
from infra.model import DatasetSpec, Problem, ReasoningGymSource, Suite


def load_problems(spec: DatasetSpec) -> list[Problem]:
    """The problems of a dataset, in file order.

    Raises:
        DatasetError: a missing file, or a row that is malformed, with its line.
        ConfigError: a reasoning-gym family or setting that does not exist.
    """
    if isinstance(spec.source, ReasoningGymSource):
        problems = _from_reasoning_gym(spec, spec.source)
    else:
        problems = _from_jsonl(spec, Path(spec.source))
    if not problems:
        raise DatasetError("holds no rows", path=_name(spec))
    return problems


def suite_digest(suite: Suite) -> str:
    """xxh3-128 over how each dataset is asked and graded, and over the content of its problems (not where they lie).

    Graders count by their versions, those of their packages, and the content of a user's module. Raises ConfigError if one
    is missing, and as `load_problems`.
    """
    digest = xxhash.xxh3_128()
    for spec in suite.datasets:
        digest.update(spec.model_dump_json(exclude={"source"} if isinstance(spec.source, str) else set()).encode())
        digest.update(version_of(spec.grader).encode())
        for problem in load_problems(spec):
            digest.update(json.dumps([problem.id, problem.prompt, problem.answer]).encode())
    return digest.hexdigest()


def _from_jsonl(spec: DatasetSpec, path: Path) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[str] = set()
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if spec.limit is not None and len(problems) == spec.limit:
                    break
                if line.strip():
                    problem = _problem(spec, _row(line, path, number), str(path), number)
                    if problem.id in seen:
                        raise DatasetError(f"id {problem.id!r} is used twice", path=str(path), line=number)
                    seen.add(problem.id)
                    problems.append(problem)
    except FileNotFoundError:
        raise DatasetError("file does not exist", path=str(path)) from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"is not UTF-8: {error}", path=str(path)) from None
    return problems


def _row(line: str, path: Path, number: int) -> dict[str, object]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DatasetError(f"is not JSON: {error}", path=str(path), line=number) from None
    if not isinstance(row, dict):
        raise DatasetError(f"must be a JSON object, not {type(row).__name__}", path=str(path), line=number)
    return row


def _from_reasoning_gym(spec: DatasetSpec, source: ReasoningGymSource) -> list[Problem]:
    import reasoning_gym

    size = min(source.size, spec.limit or source.size)
    try:
        entries = reasoning_gym.create_dataset(source.reasoning_gym, size=size, seed=source.seed, **source.config)
        rows: list[dict[str, object]] = [dict(entry) for entry in entries]
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"dataset {spec.name}: reasoning-gym {source.reasoning_gym!r}: {error}") from None
    return [
        _problem(spec, {"prompt": row["question"], "id": f"{source.reasoning_gym}-{index}", **row}, _name(spec), index + 1)
        for index, row in enumerate(rows)
    ]


def _problem(spec: DatasetSpec, row: dict[str, object], path: str, number: int) -> Problem:
    answer = row.get(spec.answer_key)
    if answer is None:
        raise DatasetError(f"has no {spec.answer_key!r}; its keys: {', '.join(row)}", path=path, line=number)
    return Problem(id=str(row.get("id", number)), prompt=_prompt(spec, row, path, number), answer=str(answer), entry=row)


def _prompt(spec: DatasetSpec, row: dict[str, Any], path: str, number: int) -> str:
    if spec.prompt_template is None:
        return _text(spec, row, path, number)
    fields = {**row, **_captured(spec, row, path, number)}
    try:
        return spec.prompt_template.format(**fields)
    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        message = f"does not fill prompt_template {spec.prompt_template!r}: {error!r}; its keys: {', '.join(fields)}"
        raise DatasetError(message, path=path, line=number) from None


def _captured(spec: DatasetSpec, row: dict[str, Any], path: str, number: int) -> dict[str, str]:
    """The named groups that `prompt_pattern` finds in the row's prompt."""
    if spec.prompt_pattern is None:
        return {}
    found = re.search(spec.prompt_pattern, text := _text(spec, row, path, number))
    if found is None:
        message = f"prompt_pattern {spec.prompt_pattern!r} is not found in {text[:80]!r}"
        raise DatasetError(message, path=path, line=number)
    return found.groupdict(default="")


def _text(spec: DatasetSpec, row: dict[str, Any], path: str, number: int) -> str:
    prompt = row.get(spec.prompt_key)
    if not isinstance(prompt, str):
        raise DatasetError(f"has no text in {spec.prompt_key!r}; its keys: {', '.join(row)}", path=path, line=number)
    return prompt


def _name(spec: DatasetSpec) -> str:
    return spec.source if isinstance(spec.source, str) else f"reasoning-gym {spec.source.reasoning_gym}"

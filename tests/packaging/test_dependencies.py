"""What is imported is declared, what is declared is used, and what is installed has one exact version."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OURS = ("flows", "tasks", "infra", "trainer_integration")
LOADED_BY_OTHERS = {"s3fs", "uvloop"}  # by fsspec for s3://, by uvicorn where it is installed
IN_ANOTHER_ENVIRONMENT = {"sglang"}  # imported by a module that SGLang's own interpreter runs
BROUGHT_BY_TRAINERS = {"megatron-core", "peft"}  # who exports a model of theirs has them
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = PROJECT["optional-dependencies"]
FOR_TESTS = [Requirement(line) for line in EXTRAS["test"]]
OPTIONAL = [Requirement(line) for extra in EXTRAS.keys() - {"test"} for line in EXTRAS[extra]]


def imported(folder: Path) -> Iterator[str]:
    """Top-level names of the modules that files below `folder` import, anywhere in them."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0]


def distributions(modules: Iterable[str]) -> set[str]:
    known = importlib.metadata.packages_distributions()
    others = set(modules) - set(sys.stdlib_module_names) - {*OURS, "tests", "benchmarks", *IN_ANOTHER_ENVIRONMENT}
    return {canonicalize_name(known[module][0]) for module in others}


def names(requirements: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def needed(requirements: Iterable[Requirement]) -> set[str]:
    """Everything that is installed because of `requirements`."""
    waiting, seen = list(requirements), set[tuple[str, str]]()
    while waiting:
        requirement = waiting.pop()
        distribution = importlib.metadata.distribution(requirement.name)
        for extra in {"", *requirement.extras}:
            if (canonicalize_name(requirement.name), extra) in seen:
                continue
            seen.add((canonicalize_name(requirement.name), extra))
            further = [Requirement(line) for line in distribution.requires or ()]
            waiting += [r for r in further if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


def test_the_packages_import_what_is_declared_and_nothing_else() -> None:
    used = distributions(name for package in OURS for name in imported(ROOT / package))
    assert used - BROUGHT_BY_TRAINERS == names([*DECLARED, *OPTIONAL]) - LOADED_BY_OTHERS


def test_what_is_optional_is_there_for_tests() -> None:
    assert names(OPTIONAL) <= names(FOR_TESTS)


def test_what_only_tests_import_is_declared_for_tests() -> None:
    assert distributions(imported(ROOT / "tests")) - names(DECLARED) <= names(FOR_TESTS)


def test_every_installed_part_has_its_exact_version_in_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    exact = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    installed = {name: importlib.metadata.version(name).split("+")[0] for name in needed([*DECLARED, *FOR_TESTS])}
    installed.pop("setuptools", None)  # comes with the virtual environment
    assert {name: exact.get(name) for name in installed} == installed

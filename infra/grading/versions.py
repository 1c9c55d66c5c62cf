"""Every grader has a version: a suite's digest changes whenever what decides a grade does."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import xxhash

from infra.errors import ConfigError
from infra.grading.registry import GRADERS
from infra.model.graders import CustomGrader, GraderSettings


def version_of(settings: GraderSettings) -> str:
    """What a grade depends on besides the settings: our revision, the packages' versions, the content of a user's module.

    Raises ConfigError where a package or module is missing.
    """
    grader = GRADERS[settings.name]
    parts = [
        f"{settings.name} {grader.revision}",
        *(f"{package} {_installed(package, settings.name)}" for package in grader.packages),
    ]
    if isinstance(settings, CustomGrader):
        parts.append(xxhash.xxh3_128_hexdigest(_source(settings.function).read_bytes()))
    return ", ".join(parts)


def _installed(package: str, grader: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"grader {grader!r} needs the package {package}: pip install {package}") from None


def _source(function: str) -> Path:
    """The file that a `module:function` is in. Raises ConfigError."""
    module = function.partition(":")[0]
    try:
        found = importlib.util.find_spec(module)
    except ImportError as error:
        raise ConfigError(f"grader {function}: {error}") from None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        raise ConfigError(f"grader {function}: there is no module {module}; it must be importable where flows run")
    return Path(found.origin)

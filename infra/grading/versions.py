"""Every grader has a version: a suite's digest changes whenever what decides a grade does."""

from __future__ import annotations

import importlib.metadata

import xxhash

from infra.errors import ConfigError
from infra.functions import source_of
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
        parts.append(xxhash.xxh3_128_hexdigest(source_of(settings.function, "grader").read_bytes()))
    return ", ".join(parts)


def _installed(package: str, grader: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"grader {grader!r} needs the package {package}: pip install {package}") from None

"""The suites that Pinpoint brings, each a YAML file of this folder, known by its name.

`arithmetic` and `reasoning-gym` make their problems; the others are templates for files of the user's own.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def ready_suites() -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def ready_suite(name: str) -> Path | None:
    """The file of a ready suite, if there is one of this name."""
    return _FOLDER / f"{name}.yaml" if name in ready_suites() else None

"""SGLang's own Python environment for CPUs: built once for one set of requirement files, found again by their hash, never half.

`python -m tests.sglang.environment` builds it if it is not there and prints the path of its interpreter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

HOME_VARIABLE = "PINPOINT_SGLANG_HOME"
PYTHON_VARIABLE = "SGLANG_PYTHON"  # what was built: settings know no PINPOINT_SGLANG_HOME, and refuse it
REQUIREMENTS = Path(__file__).parent / "requirements"
WITHOUT_DEPENDENCIES = "without-dependencies"
COMPLETE = ".complete"


def home() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(HOME_VARIABLE) or cache / "pinpoint")


def folder() -> Path:
    """Where the environment of the requirement files as they are now belongs."""
    digest = hashlib.sha256(f"{sys.implementation.cache_tag}\n".encode())
    for file in _files():
        digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return home() / f"sglang-{digest.hexdigest()[:16]}"


def interpreter() -> Path | None:
    """The environment's Python, or the one that is named; None if it is not there, or is there in part."""
    if named := os.environ.get(PYTHON_VARIABLE):
        return Path(named)
    return folder() / "bin" / "python" if (folder() / COMPLETE).exists() else None


def build() -> Path:
    """The environment's Python, after minutes and 3 GB if it has to be made. Two builders at once make it once."""
    target = folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if interpreter() is None:
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
            for file in _files():
                flags = ["--no-deps"] if WITHOUT_DEPENDENCIES in file.name else []
                pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                subprocess.run([*pip, *flags, "--requirement", str(file)], check=True, stdout=sys.stderr)
            (target / COMPLETE).touch()
    return target / "bin" / "python"


def _files() -> list[Path]:
    return sorted(REQUIREMENTS.glob("*.txt"))


if __name__ == "__main__":
    print(build())

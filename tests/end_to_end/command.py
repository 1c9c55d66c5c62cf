"""The `pinpoint` command as a user runs it: its own process, its own environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PINPOINT = str(Path(sys.executable).parent / "pinpoint")


OURS = ("PINPOINT_", "PREFECT_", "RAY_")


def bare_environment(**variables: str) -> dict[str, str]:
    """This process's environment without what points at a stack that other tests share."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, "COLUMNS": "140", **variables}


def pinpoint(*arguments: str | Path, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [PINPOINT, *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "140", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=env, check=False)


def assert_one_clear_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, one line on stderr that holds all `words`, and no traceback."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]

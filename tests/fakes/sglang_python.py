"""A fake at the process: an interpreter in whose environment SGLang runs on GPUs that are not there.

It is given to a fleet as `engine_python`. What it is asked to launch is written beside it, and served by the embedded engine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

OPTIONS = ("dp_size", "ep_size", "log_level", "load_format", "mem_fraction_static", "pp_size")
SCRIPT = '#!/bin/sh\nexec {python} {here} {folder} "$@"\n'


def make_interpreter(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python"
    path.write_text(SCRIPT.format(python=sys.executable, here=__file__, folder=folder))
    path.chmod(0o755)
    return path


def launches(folder: Path) -> list[dict[str, Any]]:
    """The command line and the visible GPUs of each launch."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.launch"))]


def run(folder: Path, arguments: list[str]) -> None:
    if "--list-options" in arguments:
        known = {name: {"options": [f"--{name.replace('_', '-')}"], "switch": False, "nargs": None} for name in OPTIONS}
        print(json.dumps(known))
        return
    told = {"arguments": arguments[1:], "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "pid": os.getpid()}
    (folder / f"{os.getpid()}.launch").write_text(json.dumps(told))
    place = [word for name in ("--model-path", "--host", "--port", "--weight-version") for word in _pair(arguments, name)]
    os.environ["EMBEDDED_ENGINE_API_KEY"] = os.environ["SGLANG_ENGINE_API_KEY"]
    os.execv(sys.executable, [sys.executable, "-m", "infra.engines.embedded", *place])


def _pair(arguments: list[str], name: str) -> list[str]:
    return arguments[arguments.index(name) :][:2]


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])

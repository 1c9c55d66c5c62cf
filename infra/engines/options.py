"""An argument that the engine's own parser does not know is refused by name, with the nearest right one, before a GPU is taken.

The parser is asked in the engine's own Python environment. Where that is on another machine, nothing is known and the engine
itself refuses.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.engines.arguments import derived, named, resolve
from infra.errors import ConfigError, UnknownKey
from infra.model import FleetSpec

logger = logging.getLogger(__name__)
ASK_TIMEOUT_S = 120.0
LAUNCHER = Path(__file__).parent / "sglang" / "pinpoint_launch.py"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Option:
    """How one field is said on the command line. `nargs` is argparse's."""

    options: tuple[str, ...]
    switch: bool
    nargs: str | int | None

    @property
    def negative(self) -> str | None:
        return next((option for option in self.options if option.startswith("--no-")), None)


Options = Mapping[str, Option]


def interpreter(spec: FleetSpec) -> list[str]:
    """The command that runs a module by path with SGLang's Python, whose own packages are not to be mixed with ours."""
    if spec.engine_python is None:
        return [sys.executable]
    return ["env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", "-u", "VIRTUAL_ENV", spec.engine_python]


def ask(spec: FleetSpec) -> Options | None:
    """The options of the fleet's engine, after some seconds; None where its interpreter is not on this machine.

    Raises ConfigError if the interpreter is there and SGLang can't be imported by it.
    """
    if spec.engine_python is not None and shutil.which(spec.engine_python) is None:
        logger.warning("fleet %s: %s is not on this machine; engine arguments are not checked", spec.name, spec.engine_python)
        return None
    device = ["--device", "cpu"] if resolve(spec).get("device") == "cpu" else []
    command = [*interpreter(spec), str(LAUNCHER), "--list-options", *device]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, env={**os.environ, **OFFLINE})
    except subprocess.TimeoutExpired:
        logger.warning("fleet %s: SGLang's parser did not answer within %g s; it checks itself", spec.name, ASK_TIMEOUT_S)
        return None
    if asked.returncode:
        last = " ".join(asked.stderr.split())[-300:]
        python = spec.engine_python or sys.executable
        raise ConfigError(f"fleet {spec.name}: {python} can't run SGLang, see engine_python: {last}")
    listed = json.loads(asked.stdout.splitlines()[-1])
    return {name: Option(tuple(known["options"]), known["switch"], known["nargs"]) for name, known in listed.items()}


def settle(spec: FleetSpec, options: Options | None) -> dict[str, Any]:
    """The engine's arguments by its own names.

    Raises UnknownKey for one, inherited or overridden, that the engine does not have; overridden with None, it is left out.
    """
    settled = resolve(spec)
    if options is None:
        return settled
    names = _field_names(options)
    spoken = {names.get(name, name): value for name, value in settled.items()}
    ours = derived(spec, named(spec.rollout_engine_args)).keys() - named(spec.engine_args).keys()
    for name in spoken.keys() - options.keys() - ours:
        where = "engine_args" if name in named(spec.engine_args) else "rollout_engine_args"
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        raise UnknownKey(name, where=f"{where} of fleet {spec.name}, for its SGLang", known=nearest or names)
    return {name: value for name, value in spoken.items() if name in options}


def render(arguments: Mapping[str, Any], options: Options | None) -> list[str]:
    """The command line. What is None, an unset switch, or an empty list or mapping is not on it."""
    line: list[str] = []
    for name, value in sorted(arguments.items()):
        known = (options or {}).get(name) or Option((f"--{name.replace('_', '-')}",), isinstance(value, bool), None)
        line += _said(known, value, certain=options is not None)
    return line


def _said(known: Option, value: Any, *, certain: bool) -> Sequence[str]:
    flag = next(option for option in known.options if option != known.negative)
    if known.switch:
        return [flag] if value else [known.negative] if known.negative else []
    if value is None or value == [] or value == {}:
        return []
    if isinstance(value, list | tuple) and (known.nargs is not None or not certain):
        return [flag, *(_word(item) for item in value)]
    return [flag, _word(value)]


def _word(value: Any) -> str:
    if isinstance(value, bool | dict | list | tuple):
        return json.dumps(value)
    return str(value)


def _field_names(options: Options) -> dict[str, str]:
    """The field that each spelling means: `--expert-parallel-size` is `ep_size`."""
    found = {name: name for name in options}
    for name, known in options.items():
        found |= {spelt.lstrip("-").replace("-", "_"): name for spelt in known.options if spelt != known.negative}
    return found

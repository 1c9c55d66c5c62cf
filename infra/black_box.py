"""A user's own evaluation runs in a process of its own: it can hang, crash or leak, and costs its point at most.

`python -m infra.black_box ANSWER_FILE` reads what to do from stdin, evaluates one checkpoint folder, disposes on every outcome,
SIGTERM included, and writes its answer.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import math
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.errors import BlackBoxFailed, ConfigError, EvalSkip, PinViolation
from infra.processes import end_group_with_parent

logger = logging.getLogger(__name__)
METHODS = ("evaluate_checkpoint", "dispose")
DISPOSE_S = 30.0  # for an orphan, from SIGTERM to SIGKILL


def evaluation_class(path: str) -> type:
    """The class at `package.module.Name` or `package.module:Name`. Raises ConfigError unless it is a CheckpointEvalFn."""
    module, _, name = path.rpartition(":") if ":" in path else path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"evaluation function {path} can't be imported: {type(error).__name__}: {error}") from None
    lacking = [method for method in METHODS if not callable(getattr(found, method, None))]
    if not isinstance(found, type) or lacking:
        lacks = f", and lacks {' and '.join(lacking)}" if lacking else ""
        raise ConfigError(f"{path} is no CheckpointEvalFn: it must be a class with {' and '.join(METHODS)}{lacks}")
    return found


def numbers(found: Any) -> dict[str, float]:
    """What an evaluation returned, as finite numbers by name. Raises BlackBoxFailed naming what is none."""
    if not isinstance(found, Mapping) or not found:
        raise BlackBoxFailed(f"it returned {found!r:.80}: return a mapping of names to numbers")
    made: dict[str, float] = {}
    for name, value in found.items():
        try:
            made[str(name)] = float(value)
        except (TypeError, ValueError):
            raise BlackBoxFailed(f"its metric {name!r} is {value!r:.80}, which is no number") from None
        if not math.isfinite(made[str(name)]):
            raise BlackBoxFailed(f"its metric {name!r} is {value!r}, which is not finite")
    return made


async def evaluate(function: str, settings: Mapping[str, Any], folder: Path, given: Mapping[str, Any]) -> dict[str, float]:
    """Raises EvalSkip, what the user's code raises, BlackBoxFailed for an answer that is no numbers."""
    evaluation = evaluation_class(function)(settings)
    try:
        return numbers(await evaluation.evaluate_checkpoint(folder, given))
    finally:
        disposed = evaluation.dispose()
        if inspect.isawaitable(disposed):
            await disposed


async def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    task = asyncio.current_task()
    if task is not None:  # the point's deadline: what was launched is still disposed of
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        folder = Path(asked["checkpoint_dir"])
        return {"metrics": await evaluate(asked["function"], asked["settings"], folder, asked["input"])}
    except EvalSkip as skip:
        return {"skip": {"reason": skip.reason, "message": skip.message}}
    except PinViolation as violation:
        found = {"message": str(violation), "expected": violation.expected, "reported": violation.reported}
        return {"pin_violation": found}
    except asyncio.CancelledError:
        return {"error": {"message": "it was ended", "traceback": ""}}
    except Exception as error:
        logger.exception("%s failed", asked["function"])
        return {"error": {"message": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}}


def main() -> None:
    end_group_with_parent(DISPOSE_S)  # the user's code may never let a signal through
    answer = asyncio.run(_answer(json.load(sys.stdin)))
    Path(sys.argv[1]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()

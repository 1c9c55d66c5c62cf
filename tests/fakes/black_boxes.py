"""Evaluations of users' own, well and badly behaved; each leaves a note in the folder that its settings name."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.errors import EvalSkip, PinViolation


class Well:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.notes = Path(settings["notes"])
        self.note("made", str(os.getpid()))

    def note(self, name: str, text: str = "") -> None:
        (self.notes / name).write_text(text)

    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        self.note("saw", " ".join(sorted(os.listdir(checkpoint_dir))))
        return {"size": (checkpoint_dir / "model.safetensors").stat().st_size, "step": input["step"]}

    async def dispose(self) -> None:
        self.note("disposed")


class Skips(Well):
    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        raise EvalSkip("license_server", "no seat was free")


class FindsOtherWeights(Well):
    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        raise PinViolation("the server moved on", expected="run/1", reported={"server": "run/2"})


class Raises(Well):
    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        raise KeyError("my own bug")


class Dies(Well):
    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


class Waits(Well):
    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        self.note("waiting")
        await asyncio.sleep(600)
        return {}


class Blocks(Well):
    """Never gives the event loop back, so it can't be told to end."""

    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        self.note("waiting")
        time.sleep(600)  # noqa: ASYNC251 (as users do)
        return {}


class SaysNothing(Well):
    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Any:
        return None


class SaysWords(Well):
    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Any:
        return {"score": "good"}


class SaysNan(Well):
    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Any:
        return {"score": float("nan")}


class DisposesAtOnce(Well):
    """`dispose` need not be a coroutine."""

    def dispose(self) -> None:  # type: ignore[override]
        self.note("disposed")


class Unfinished:
    def dispose(self) -> None: ...


def a_function() -> None: ...

"""What a trainer and a user's own evaluation agree on with Pinpoint; importing it costs nothing.

The only thing that crosses from training to evaluation is (eval point, snapshot location).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from infra.errors import EvalSkip

__all__ = ["CheckpointEvalFn", "EvalSkip", "Exporter"]


@runtime_checkable
class CheckpointEvalFn(Protocol):
    """An evaluation of the user's own: a checkpoint folder goes in, metrics come out."""

    def __init__(self, settings: Mapping[str, Any]) -> None: ...

    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        """Raises EvalSkip(reason) for a point that is not to be measured."""
        ...

    async def dispose(self) -> None:
        """Called once, on every outcome."""
        ...


class Exporter(Protocol):
    """Copies the live model into an empty folder, in Hugging Face layout.

    All that the training loop waits for: it must return as soon as the model may change again. Whatever it raises makes
    the point `export_failed` and never reaches the training loop.
    """

    def __call__(self, folder: Path) -> None: ...

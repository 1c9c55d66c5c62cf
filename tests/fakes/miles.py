"""What Miles' driver and rollout manager look like to an evaluation: their public call shapes, with faults as fields."""

from __future__ import annotations

import asyncio
import shutil
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Remote:
    """A method of a Ray actor: `.remote(...)` gives what can be awaited, once, and answers later."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def remote(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return asyncio.ensure_future(self._answer(*args, **kwargs))

    async def _answer(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return self._function(*args, **kwargs)


@dataclass
class RolloutManager:
    fails: Exception | None = None
    deaf: bool = False
    evaluated: list[int] = field(default_factory=list)
    skips: list[tuple[int, str]] = field(default_factory=list)
    while_evaluating: Callable[[], None] = lambda: None

    @property
    def eval(self) -> Remote:
        return Remote(self._eval)

    @property
    def report_eval_skip(self) -> Remote:
        return Remote(self._skip)

    def _eval(self, rollout_id: int) -> None:
        self.while_evaluating()
        if self.fails:
            raise self.fails
        self.evaluated.append(rollout_id)

    def _skip(self, rollout_id: int, reason: str) -> None:
        if self.deaf:
            raise ConnectionError("the actor died")
        self.skips.append((rollout_id, reason))


@dataclass
class ActorGroup:
    """All ranks write the folder; the call returns when the last one has."""

    checkpoint: Path
    fails: Exception | None = None
    exported: list[tuple[int, str]] = field(default_factory=list)

    async def export_hf(self, rollout_id: int, hf_dir: str) -> None:
        await asyncio.sleep(0.01)
        if self.fails:
            (Path(hf_dir) / "half").write_text("of rank 0")
            raise self.fails
        await asyncio.to_thread(shutil.copytree, self.checkpoint, hf_dir, dirs_exist_ok=True)
        self.exported.append((rollout_id, hf_dir))


@dataclass(frozen=True)
class EvalInput:
    rollout_id: int
    hf_dir: str
    weight_version: str = ""


def namespace(**changes: Any) -> Namespace:
    """What Miles' own parser makes, as far as evaluation reads it."""
    values: dict[str, Any] = {
        "eval_interval": 5,
        "eval_num_gpus": 0,
        "eval_num_gpus_per_engine": 1,
        "eval_hf_dir": None,
        "save_hf": None,
        "save_interval": None,
        "eval_max_in_flight": 2,
        "eval_overflow_policy": "backpressure",
        "eval_keep_snapshots": 2,
        "eval_function_path": "miles.rollout.generate",
        "rollout_function_path": "miles.rollout.generate",
        "eval_prompt_data": None,
        "eval_config": None,
        "rm_type": "exact",
        "input_key": "input",
        "label_key": "label",
        "n_samples_per_eval_prompt": 1,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_num_gpus_per_engine": 2,
        "skip_eval_before_train": False,
        "colocate": False,
        "num_rollout": 100,
        "start_rollout_id": None,
        "wandb_group": "run",
        "sglang_router_ip": "10.0.0.1",
        "sglang_dtype": "bfloat16",
        "eval_sglang_dtype": None,
    }
    return Namespace(**{**values, **changes})

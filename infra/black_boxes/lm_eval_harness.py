"""lm-eval's own tasks, of local files, run against engines that are pinned to the snapshot and proved; its metrics come back.

Settings: those of the engine, as for ExternalSGLang, and those of HarnessSettings. Nothing is fetched from a hub.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from infra.black_boxes.own_engine import FIELDS, OwnEngine
from infra.black_boxes.pinned_asker import PinnedAsker
from infra.concurrency import in_thread
from infra.config import parse
from infra.datasets.harness import prepare, task_index
from infra.engines.client import EngineClient
from infra.errors import ChatTemplateMissing, ConfigError
from infra.model import PinnedFleet


class HarnessSettings(BaseModel):
    """What is asked of lm-eval; each field is as in its `simple_evaluate`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    tasks: tuple[str, ...] = Field(min_length=1, description="names of tasks, groups or tags; or one text, with commas")
    include_path: Path | None = Field(default=None, description="folder with the YAML files of tasks of your own")
    num_fewshot: int | None = Field(default=None, ge=0, description="examples before each question; default: the task's")
    limit: int | float | None = Field(default=None, gt=0, description="rows of each task: a number, or a share below 1")
    apply_chat_template: bool = Field(default=False, description="ask with the snapshot's chat template")
    gen_kwargs: dict[str, Any] = Field(default={}, description="generation_kwargs that override those of the tasks")
    samples_dir: Path | None = Field(default=None, description="gets what lm-eval logs of each sample, TASK.jsonl")

    @field_validator("tasks", mode="before")
    @classmethod
    def _one_text(cls, tasks: Any) -> Any:
        return [name.strip() for name in tasks.split(",")] if isinstance(tasks, str) else tasks


class LmEvalHarness:
    """Raises at once for what can't be meant: UnknownKey, ConfigError."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.engine = OwnEngine(settings, owner="LmEvalHarness", others=HarnessSettings.model_fields)
        own = {name: value for name, value in settings.items() if name not in FIELDS}
        self.asked = parse(HarnessSettings, own, where="settings of LmEvalHarness")
        if self.asked.include_path is not None and not self.asked.include_path.is_dir():
            raise ConfigError(f"include_path {self.asked.include_path} is no folder: give that of the tasks' YAML files")
        prepare("LmEvalHarness")
        self.tasks = task_index(self.asked.tasks, None if self.asked.include_path is None else str(self.asked.include_path))

    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        """Raises what pinning raises, PinViolation for a response of another version, and what lm-eval raises."""
        pinned = await self.engine.pinned(checkpoint_dir, input)
        results = await self._run(pinned, checkpoint_dir)
        if self.asked.samples_dir is not None:
            _keep(results["samples"], self.asked.samples_dir)
        return metrics_of(results)

    async def dispose(self) -> None:
        await self.engine.stop()

    async def _run(self, pinned: PinnedFleet, folder: Path) -> dict[str, Any]:
        from lm_eval.evaluator import simple_evaluate

        from infra.black_boxes.pinned_lm import PinnedLM

        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(EngineClient(e.base_url, pinned.api_key)) for e in pinned.engines]
            lm = PinnedLM(PinnedAsker(pinned, clients), folder, stopping := threading.Event())
            if self.asked.apply_chat_template and not lm.tokenizer.chat_template:
                message = f"{folder} has no chat template: save it with the tokenizer, or set apply_chat_template: false"
                raise ChatTemplateMissing(message, subject="chat_template.jinja")
            evaluation = partial(
                simple_evaluate,
                lm,
                tasks=list(self.asked.tasks),
                task_manager=self.tasks,
                num_fewshot=self.asked.num_fewshot,
                limit=self.asked.limit,
                apply_chat_template=self.asked.apply_chat_template,
                gen_kwargs=dict(self.asked.gen_kwargs) or None,
            )
            return dict(await in_thread(evaluation, stopping))


def metrics_of(results: Mapping[str, Any]) -> dict[str, float]:
    """TASK/METRIC and TASK/METRIC_stderr; of a task with named filters, TASK/METRIC/FILTER.

    A standard error that lm-eval can't give, of a single row for one, is left out.
    """
    found: dict[str, float] = {}
    for task, metrics in results["results"].items():
        for key, value in metrics.items():
            metric, _, chosen = key.partition(",")
            if not chosen or (metric.endswith("_stderr") and not _is_finite(value)):
                continue
            found[f"{task}/{metric}" if chosen == "none" else f"{task}/{metric}/{chosen}"] = value
    return found


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _keep(samples: Mapping[str, list[Any]], folder: Path) -> None:
    from lm_eval.utils import handle_non_serializable

    folder.mkdir(parents=True, exist_ok=True)
    for task, logged in samples.items():
        lines = "".join(json.dumps(sample, default=handle_non_serializable) + "\n" for sample in logged)
        (folder / f"{task}.jsonl").write_text(lines)

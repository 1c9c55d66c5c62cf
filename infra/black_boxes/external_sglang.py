"""A server of one's own is pinned to the snapshot and proved like an engine of a fleet, then asked the suite's questions.

Settings: `url`, one or a list, and `api_key_variable`, the environment variable that holds their key, to attach to servers that
run already; or fields of FleetSpec (`engine`, `engine_args`, `engine_python`, `gpus_per_engine`) and `gpus`, to launch one here
for this point. `samples_dir`, if given, gets the samples as JSON lines, a file a dataset.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.black_boxes.own_engine import OwnEngine
from infra.concurrency import gather_all
from infra.datasets import load_problems
from infra.grading.failed_share import too_many_failed
from infra.model import DatasetSpec, PinnedFleet, Suite
from infra.prompts import renderer_of
from infra.running import run_samples
from infra.statistics import count_outcomes, coverage_and_bounds, estimate, prompt_means

logger = logging.getLogger(__name__)


class ExternalSGLang:
    """Attaches to servers, or launches one; what is not of its settings is refused by name."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.engine = OwnEngine(settings, owner="ExternalSGLang", others=["samples_dir"])
        self.samples_dir = settings.get("samples_dir")

    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        """Raises what pinning raises: a server that holds something else has no number."""
        pinned = await self.engine.pinned(checkpoint_dir, input)
        suite = Suite.model_validate(input["suite"])
        scores = await gather_all(self._measure(pinned, dataset) for dataset in suite.datasets)
        return {name: value for score in scores for name, value in score.items()}

    async def dispose(self) -> None:
        await self.engine.stop()

    async def _measure(self, pinned: PinnedFleet, spec: DatasetSpec) -> dict[str, float]:
        problems = await asyncio.to_thread(load_problems, spec)
        render = await asyncio.to_thread(renderer_of, pinned, spec)
        samples = await run_samples(pinned, spec, problems, render)
        if folder := self.samples_dir:
            lines = "".join(json.dumps(asdict(sample)) + "\n" for sample in samples)
            await asyncio.to_thread((Path(folder) / f"{spec.name}.jsonl").write_text, lines)
        score, (coverage, _, _) = estimate(prompt_means(samples)), coverage_and_bounds(samples)
        found = {f"{spec.name}/coverage": coverage}
        if reason := too_many_failed(count_outcomes(samples), spec.max_failed_share):
            logger.warning("%s has no score: %s", spec.name, reason)
            return found
        return found if score is None else {spec.name: score.mean, f"{spec.name}/stderr": score.stderr, **found}

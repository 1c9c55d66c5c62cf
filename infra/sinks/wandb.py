"""A run as one W&B run, RUN-eval in the group RUN, plotted over its own step metric: a late point is kept.

W&B drops what is logged at a step below its own last one, so its step is the place in the order of sending, and `eval/step`
is the axis. `WANDB_MODE`, `WANDB_PROJECT`, `WANDB_ENTITY` and `WANDB_DIR` mean what they mean to W&B.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from infra.sinks import PROJECT, Place, needs_package
from infra.sinks.metrics import STEP, TrackedPoint
from infra.sinks.sent import send_missing


class WeightsAndBiases:
    def __init__(self, place: Place) -> None:
        try:
            import wandb
        except ImportError as error:
            needs_package("wandb", "wandb", "install pinpoint-eval[wandb]", error)
        self._wandb, self.place = wandb, place
        self.project = place.project or os.environ.get("WANDB_PROJECT") or PROJECT
        self.mode: Any = os.environ.get("WANDB_MODE") or "online"
        self.folder = os.environ.get("WANDB_DIR") or str(place.folder)

    @property
    def target(self) -> str:
        where = self.folder if self.mode == "offline" else os.environ.get("WANDB_BASE_URL", "W&B")
        return f"{where} {os.environ.get('WANDB_ENTITY', '')}/{self.project} run {self.place.run}-eval, {self.mode}"

    def write(self, points: Sequence[TrackedPoint]) -> int:
        if self.mode == "disabled":  # W&B's own word for taking everything and keeping nothing
            return 0
        return send_missing(self.place, "wandb", self.target, points, self._send)

    def _send(self, missing: list[tuple[int, TrackedPoint]]) -> None:
        os.makedirs(self.folder, exist_ok=True)
        with self._wandb.init(
            project=self.project,
            id=f"{self.place.run}-eval",
            name=f"{self.place.run}-eval",
            group=self.place.run,
            job_type="eval",
            resume="allow",
            dir=self.folder,
            mode=self.mode,
            settings=self._quiet(),
        ) as run:
            run.define_metric(STEP)
            run.define_metric("eval/*", step_metric=STEP)
            for place, point in missing:
                run.log(point.metrics, step=place)
        self._wandb.teardown()  # only after this is the last of it in the file, or with the server

    def _quiet(self) -> Any:
        """Nothing of this machine or program but the points."""
        return self._wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, disable_job_creation=True, x_disable_stats=True
        )

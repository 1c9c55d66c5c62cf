"""A run as one trackio run, RUN-eval, each point at the step that was dispatched; `TRACKIO_DIR` is trackio's own."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO

from infra.sinks import PROJECT, Place, needs_package
from infra.sinks.metrics import TrackedPoint
from infra.sinks.sent import send_missing


class Trackio:
    def __init__(self, place: Place) -> None:
        try:
            self._trackio = importlib.import_module("trackio")  # no extra of ours: docs/sinks.md says why
        except ImportError as error:
            needs_package("trackio", "trackio", "install trackio beside Pinpoint", error)
        self.place = place
        self.project = place.project or PROJECT

    @property
    def target(self) -> str:
        space = os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL") or str(self._trackio.TRACKIO_DIR)
        return f"{space} project {self.project} run {self.place.run}-eval"

    def write(self, points: Sequence[TrackedPoint]) -> int:
        return send_missing(self.place, "trackio", self.target, points, self._send)

    def _send(self, missing: list[tuple[int, TrackedPoint]]) -> None:
        with redirect_stdout(StringIO()):  # it prints advice
            run = self._trackio.init(
                project=self.project,
                name=f"{self.place.run}-eval",
                group=self.place.run,
                resume="allow",
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            try:
                for _, point in missing:
                    run.log(point.metrics, step=point.step)
            finally:
                run.finish()

"""A run as one MLflow run, whose tags say which points it has; a tag goes with its point's numbers in one request.

Where `MLFLOW_TRACKING_URI` names no server, a database below `home` is written. The time of a number is that of its record,
so that a database, which keeps equal rows once, has none twice even if it was cut off between the two. Where MLflow keeps
files, a metric can't be a folder too: `eval/sums/stderr` is `eval.sums.stderr` there.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from infra.sinks import PROJECT, Place, needs_package
from infra.sinks.metrics import TrackedPoint

RUN = "pinpoint.run"
POINT = "pinpoint.point."
_REFUSED = re.compile(r"[^\w\-./ ]")


class MLflow:
    def __init__(self, place: Place) -> None:
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            needs_package("mlflow", "mlflow-skinny", "install pinpoint-eval[mlflow]", error)
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place.folder / 'mlflow.db'}"
        self.experiment = place.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        self.run, self.folder, self._client = place.run, place.folder, MlflowClient

    @property
    def target(self) -> str:
        return f"{self.uri} experiment {self.experiment}"

    def write(self, points: Sequence[TrackedPoint]) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        client = self._client(tracking_uri=self.uri)
        run = self._run(client)
        new = [point for point in points if POINT + point.key not in run.data.tags]
        for point in new:
            self._log(client, run.info.run_id, point)
        if new:
            client.set_terminated(run.info.run_id)
        return len(new)

    def _run(self, client: Any) -> Any:
        """The run that has our tag, made if there is none."""
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        found = client.search_runs([experiment], filter_string=f"tags.`{RUN}` = '{self.run}'")
        return found[0] if found else client.create_run(experiment, run_name=self.run, tags={RUN: self.run})

    def _log(self, client: Any, run_id: str, point: TrackedPoint) -> None:
        from mlflow.entities import Metric, RunTag

        at_ms = round(point.at * 1000)
        numbers = {self._name(name): value for name, value in point.metrics.items() if math.isfinite(value)}
        metrics = [Metric(name, value, at_ms, point.step) for name, value in numbers.items()]
        client.log_batch(run_id, metrics=metrics, tags=[RunTag(POINT + point.key, point.record.kind)])

    def _name(self, metric: str) -> str:
        name = _REFUSED.sub("_", metric)
        return name.replace("/", ".") if urlsplit(self.uri).scheme in ("", "file") else name

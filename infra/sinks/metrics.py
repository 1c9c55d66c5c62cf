"""A point's record becomes numbers for trackers, to be plotted over `eval/step` however late they come.

A trainer's own tracker and every sink have the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from infra.model import DatasetResult, EvalReport, SkippedPoint
from infra.records import history
from infra.store import Store

STEP = "eval/step"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPoint:
    """What a sink gets of one record. `key` is unique in the run; `at` is when it was finished, in seconds since 1970."""

    key: str
    step: int
    at: float
    metrics: dict[str, float]
    record: EvalReport | SkippedPoint


def points_of(store: Store, run: str) -> list[TrackedPoint]:
    """All points of a run that have a record, by step, attempt and suite."""
    return [tracked(record) for record in history(store, run)]


def tracked(record: EvalReport | SkippedPoint) -> TrackedPoint:
    return TrackedPoint(
        key=f"{record.point.key}/{record.suite}",
        step=record.point.step,
        at=datetime.fromisoformat(record.finished_at).timestamp(),
        metrics={**metrics_of(record), "eval/attempt": float(record.point.attempt)},
        record=record,
    )


def metrics_of(record: EvalReport | SkippedPoint) -> dict[str, float]:
    """`eval/step` is the step that was dispatched; `eval/duration_seconds` counts from the flow's start, not from the queue.

    A black box's own number of such a name does not take its place.
    """
    common = {STEP: float(record.point.step), "eval/export_time_seconds": record.export_time_seconds}
    if isinstance(record, SkippedPoint):
        return {**common, f"eval/skipped_{record.reason}": 1.0}
    scores = [item for result in record.results for item in _of_dataset(result).items()]
    return {
        **{f"eval/{name}": value for name, value in record.metrics.items()},
        **common,
        "eval/lag_steps": float(record.lag_steps),
        "eval/duration_seconds": record.duration_seconds,
        **dict(scores),
    }


def _of_dataset(result: DatasetResult) -> dict[str, float]:
    name = f"eval/{result.dataset}"
    if not result.n_samples:
        return {f"{name}/coverage": 0.0}
    found = {
        f"{name}/coverage": result.coverage,
        f"{name}/truncated_ratio": result.truncated_ratio,
        f"{name}/weight_version/mean": result.weight_version_mean,
        f"{name}/mixed_version_ratio": result.mixed_version_ratio,
    }
    if result.score is not None:
        found |= {name: result.score.mean, f"{name}/stderr": result.score.stderr}
    return found

"""A point's record becomes numbers for a trainer's own tracker, to be plotted over `eval/step` however late they come."""

from __future__ import annotations

from infra.model import DatasetResult, EvalReport, SkippedPoint


def metrics_of(record: EvalReport | SkippedPoint) -> dict[str, float]:
    """`eval/step` is the step that was dispatched; `eval/duration_seconds` counts from the flow's start, not from the queue."""
    common = {"eval/step": float(record.point.step), "eval/export_time_seconds": record.export_time_seconds}
    if isinstance(record, SkippedPoint):
        return {**common, f"eval/skipped_{record.reason}": 1.0}
    scores = [item for result in record.results for item in _of_dataset(result).items()]
    return {
        **common,
        "eval/lag_steps": float(record.lag_steps),
        "eval/duration_seconds": record.duration_seconds,
        **{f"eval/{name}": value for name, value in record.metrics.items()},
        **dict(scores),
    }


def _of_dataset(result: DatasetResult) -> dict[str, float]:
    name = f"eval/{result.dataset}"
    found = {
        f"{name}/coverage": result.coverage,
        f"{name}/truncated_ratio": result.truncated_ratio,
        f"{name}/weight_version/mean": result.weight_version_mean,
        f"{name}/mixed_version_ratio": result.mixed_version_ratio,
    }
    if result.score is not None:
        found |= {name: result.score.mean, f"{name}/stderr": result.score.stderr}
    return found

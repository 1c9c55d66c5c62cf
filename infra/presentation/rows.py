"""A report's scores, and a run's points, as rows whose cells are short plain texts."""

from __future__ import annotations

from collections.abc import Sequence

from infra.model import Comparison, EvalReport, SkippedPoint
from infra.presentation.texts import plain
from infra.wording import comparison_text, estimate_text, lengths_text, passes_text, score_text, share_text


def score_rows(report: EvalReport) -> list[dict[str, str | int]]:
    """One row a dataset, or a black box's metric."""
    if report.metrics:
        return [{"metric": plain(name), "value": f"{value:g}"} for name, value in report.metrics.items()]
    return [
        {
            "dataset": plain(result.dataset),
            "score [95% interval]": plain(score_text(result)),
            "vs previous": comparison_text(against(report, result.dataset, "previous")),
            "vs baseline": comparison_text(against(report, result.dataset, "baseline")),
            "pass@k": passes_text(result.pass_at_k),
            "prompts": result.n_prompts,
            "samples": result.n_samples,
            "coverage": f"{result.coverage:.1%}",
            "truncated": share_text(result.truncated_ratio),
            "completed only": estimate_text(result.score_completed),
            "tokens p50 / p90 / p99 / max": lengths_text(result),
            "looping": share_text(result.repetition_ratio),
            "weight_version/mean": f"{result.weight_version_mean:g}",
            "mixed_version_ratio": f"{result.mixed_version_ratio:g}",
        }
        for result in report.results
    ]


def against(report: EvalReport, dataset: str, other: str) -> Comparison | None:
    return next((made for made in report.comparisons if (made.dataset, made.against) == (dataset, other)), None)


OWN_COLUMNS = ("step", "suite", "lag", "export s", "skipped")


def history_rows(records: Sequence[EvalReport | SkippedPoint]) -> list[dict[str, str]]:
    """One row a point, a column a dataset; a skipped point keeps its place and says why."""
    reports = [record for record in records if isinstance(record, EvalReport)]
    datasets = list(
        dict.fromkeys(name for record in reports for name in (*(r.dataset for r in record.results), *record.metrics))
    )
    suites = {record.suite for record in records}
    rows: list[dict[str, str]] = []
    for record in records:
        row = {"step": str(record.point.step)}
        if record.point.attempt:
            row["step"] += f" (attempt {record.point.attempt})"
        if len(suites) > 1:
            row["suite"] = plain(record.suite)
        scores = scores_of(record)
        row.update({_column(name): scores.get(name, "–") for name in datasets})
        row["lag"] = str(record.lag_steps) if isinstance(record, EvalReport) else "–"
        row["export s"] = f"{record.export_time_seconds:.3f}"
        row["skipped"] = plain(f"{record.reason}: {record.message}") if isinstance(record, SkippedPoint) else ""
        rows.append(row)
    return rows


def _column(dataset: str) -> str:
    """Of a dataset or metric, whatever it is called."""
    name = plain(dataset)
    return f"{name} (score)" if name in OWN_COLUMNS else name


def scores_of(record: EvalReport | SkippedPoint) -> dict[str, str]:
    """Text of each dataset's score, and of each metric."""
    if isinstance(record, SkippedPoint):
        return {}
    scores = {name: f"{value:g}" for name, value in record.metrics.items()}
    return scores | {result.dataset: plain(score_text(result)) for result in record.results}

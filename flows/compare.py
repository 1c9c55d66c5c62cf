"""`pinpoint compare`: the difference between two measured points, on the prompts that both were asked, or why there is none."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from flows.comparable import Pair, Place, pair_of
from flows.given import SettingsOption, StoreOption, read_store
from flows.terminal import fitting, reading_console, stacked
from infra.comparing import PromptScores
from infra.comparing import compare as compare_dataset
from infra.model import Comparison, DatasetResult, EvalReport
from infra.wording import comparison_notes, comparison_row, score_text

NOTHING_COMPARED = 1


def compare(
    first: Annotated[str, typer.Argument(metavar="RUN@STEP", help="the point to start from; RUN@STEP:ATTEMPT for one attempt")],
    second: Annotated[str, typer.Argument(metavar="RUN@STEP", help="the point that is compared with it")],
    suite: Annotated[str | None, typer.Option(help="name of the suite, if the points have several in common")] = None,
    dataset: Annotated[str | None, typer.Option(help="only this one")] = None,
    across_suites: Annotated[
        bool, typer.Option("--across-suites", help="compare though the suite has changed, on the prompts that are still equal")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Show what changed from one point to another, prompt by prompt, with its interval (docs/statistics.md)."""
    opened = read_store(settings_file, store)
    pair = pair_of(opened, Place.of(first), Place.of(second), suite, dataset, across=across_suites)
    scores = PromptScores(opened, pair.first.suite)
    made = [compare_dataset(scores, pair.second, pair.first, name, "asked") for name in pair.datasets]
    (_print_json if as_json else _print)(pair, made)
    if not any(one.difference for one in made):
        raise typer.Exit(NOTHING_COMPARED)


def _result(report: EvalReport, dataset: str) -> DatasetResult:
    return next(result for result in report.results if result.dataset == dataset)


def _print(pair: Pair, made: list[Comparison]) -> None:
    out = reading_console()
    one, other = _labels(pair)
    rows = []
    for comparison in made:
        row = comparison_row(comparison)
        dataset, _ = row.pop("dataset"), row.pop("against")
        scores = {label: score_text(_result(report, dataset)) for label, report in ((one, pair.first), (other, pair.second))}
        rows.append({"dataset": dataset, **scores, **row})
    out.print(fitting(out, f"{other} minus {one}, suite {pair.first.suite}", rows, stacked(rows)))
    for note in [*(note for one in made for note in comparison_notes(one)), *pair.notes]:
        out.print(f"* {note}", soft_wrap=True, highlight=False, markup=False)


def _labels(pair: Pair) -> tuple[str, str]:
    points = (pair.first.point, pair.second.point)
    runs_differ, attempts = points[0].run != points[1].run, any(point.attempt for point in points)
    made = [
        f"{f'{point.run} ' if runs_differ else ''}step {point.step}{f' (attempt {point.attempt})' if attempts else ''}"
        for point in points
    ]
    return made[0], made[1]


def _print_json(pair: Pair, made: list[Comparison]) -> None:
    def described(report: EvalReport) -> dict[str, Any]:
        scores = {name: asdict(score) if (score := _result(report, name).score) else None for name in pair.datasets}
        known = {"weight_version": report.weight_version, "suite_digest": report.suite_digest, "scores": scores}
        return {**asdict(report.point), **known}

    differences = [
        {
            "dataset": one.dataset,
            "difference": asdict(one.difference) | {"verdict": one.difference.verdict} if one.difference else None,
            "unpaired": one.unpaired,
            "reason": one.reason,
        }
        for one in made
    ]
    points = {"first": described(pair.first), "second": described(pair.second)}
    print(json.dumps({"suite": pair.first.suite, **points, "datasets": differences, "notes": pair.notes}, indent=1))

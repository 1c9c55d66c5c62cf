"""A curve is a small picture in a page, however long its run is."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from infra import pictures
from infra.model import EvalPoint, EvalReport, SkippedPoint
from infra.pictures import MOST_BYTES, MOST_MARKS, comparison_image, curve_image, thinned
from tests.infra.examples import REPORT, RESULT, SKIPPED, report_at

START = "data:image/png;base64,"


def long_run(points: int, datasets: int) -> list[EvalReport | SkippedPoint]:
    results = tuple(replace(RESULT, dataset=f"set{number}") for number in range(datasets))
    return [
        replace(REPORT, point=EvalPoint(run="run", step=step), results=results)
        if step % 7
        else replace(SKIPPED, point=EvalPoint(run="run", step=step))
        for step in range(points)
    ]


def test_a_curve_is_a_picture_of_some_kilobytes() -> None:
    image, note = curve_image("run", [report_at(0), replace(SKIPPED, point=EvalPoint(run="run", step=10)), report_at(20)])
    assert image.startswith(START)
    assert base64.b64decode(image.removeprefix(START)).startswith(b"\x89PNG")
    assert (len(image) < 15_000, note) == (True, "")


def test_a_very_long_run_is_a_picture_of_bounded_size_that_says_what_it_leaves_out() -> None:
    image, note = curve_image("run", long_run(2000, 12))
    assert START in image
    assert len(image) < MOST_BYTES * 4 / 3 + 100
    assert note == "336 of 2000 points are drawn, evenly chosen."  # 50 that were measured, and every skip


def test_thinning_keeps_the_ends_and_nothing_is_thinned_that_need_not_be() -> None:
    run = long_run(1000, 3)
    kept, _ = thinned(run, MOST_MARKS)
    skips = [record for record in run if isinstance(record, SkippedPoint)]
    assert (kept[0], kept[-1], len(kept)) == (run[0], run[-1], MOST_MARKS // 3 + len(skips))
    assert [record for record in kept if isinstance(record, SkippedPoint)] == skips
    assert len(thinned(skips * 10, MOST_MARKS)[0]) == MOST_MARKS
    assert thinned(run[:5], MOST_MARKS) == (run[:5], "")
    assert thinned([], MOST_MARKS) == ([], "")


def test_runs_beside_each_other_are_one_picture() -> None:
    image, note = comparison_image({"one": [report_at(0)], "two": [report_at(0), report_at(20)]})
    assert image.startswith(START)
    assert note == ""


def test_a_picture_that_stays_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_BYTES", 100)
    assert curve_image("run", [report_at(0)]) == ("", "")

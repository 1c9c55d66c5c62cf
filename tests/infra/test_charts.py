"""The chart of a run shows every value with its interval and every gap with its reason, whatever things are called."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import vl_convert

from infra.charts import MOST_IN_PICTURE, MOST_SERIES, comparison_chart, comparison_png, curve_chart, curve_png, phases_chart
from infra.model import Estimate, EvalPoint, EvalReport, SkippedPoint
from tests.infra.examples import REPORT, RESULT, SKIPPED

Record = EvalReport | SkippedPoint
OURS = {"series", "run", "step", "value", "low", "high", "text", "attempt", "suite", "row", "what", "reason", "why", "asked"}
OURS |= {"line", "previous", "lag", "weights", "missed", "point", "phase", "seconds", "order"}
EVIL = [
    "a.b",
    "a[0]",
    "datum['x']",
    "{{x}}",
    "<script>x</script>",
    "x'; alert(1) //",
    "\u202eabc",
    "名前",
    "",
    "a\x00b",
    "__proto__",
]


def at(step: int, scores: dict[str, float], attempt: int = 0, run: str = "run", **changes: Any) -> EvalReport:
    results = tuple(
        replace(RESULT, dataset=name, score=Estimate(mean=mean, stderr=0.02, low=mean - 0.04, high=mean + 0.04, n=10))
        for name, mean in scores.items()
    )
    return replace(REPORT, point=EvalPoint(run=run, step=step, attempt=attempt), results=results, **changes)


def measures(step: int, metrics: dict[str, float]) -> EvalReport:
    return replace(REPORT, point=EvalPoint(run="run", step=step), results=(), metrics=metrics)


def skipped(step: int, reason: str = "busy", message: str = "2 in flight", run: str = "run") -> SkippedPoint:
    return replace(SKIPPED, point=EvalPoint(run=run, step=step), reason=reason, message=message)


CURVE: list[Record] = [at(0, {"sums": 0.5, "words": 0.4}), skipped(20), at(40, {"sums": 0.7, "words": 0.6})]


def spec_of(records: list[Record], **asked: Any) -> dict[str, Any]:
    made: dict[str, Any] = curve_chart("run", records, **asked).to_dict()
    return made


def drawn(spec: dict[str, Any]) -> str:
    """What Vega makes of it: a chart that it can't draw raises."""
    return str(vl_convert.vegalite_to_svg(spec))


def inside(spec: Any, key: str) -> Iterator[Any]:
    """Every value of `key`, at any depth, outside the data."""
    if isinstance(spec, dict):
        for name, value in spec.items():
            if name == key:
                yield value
            if name != "datasets":
                yield from inside(value, key)
    elif isinstance(spec, list):
        for value in spec:
            yield from inside(value, key)


def test_every_value_stands_at_its_step_with_its_interval() -> None:
    marks = spec_of(CURVE)["datasets"]["values_0"]
    found = {(mark["series"], mark["step"], mark["value"], round(mark["low"], 2), round(mark["high"], 2)) for mark in marks}
    assert found == {
        ("sums", 0, 0.5, 0.46, 0.54),
        ("words", 0, 0.4, 0.36, 0.44),
        ("sums", 40, 0.7, 0.66, 0.74),
        ("words", 40, 0.6, 0.56, 0.64),
    }


def test_as_many_points_and_bars_are_drawn_as_there_are_values() -> None:
    made = drawn(spec_of(CURVE))
    assert made.count('aria-roledescription="point"') == 4 + 1  # and the cross of the skip
    assert made.count("score [95% interval]: 0.700 [0.66, 0.74]") == 1
    assert made.count('aria-roledescription="rule mark"') == 4 + 1  # and the upright of the skip


def test_a_skipped_point_is_marked_at_its_step_with_its_reason() -> None:
    spec = spec_of(CURVE)
    [gap] = spec["datasets"]["gaps"]
    assert (gap["step"], gap["row"], gap["why"]) == (20, "busy", "2 in flight")
    assert spec["datasets"]["gap_steps"] == [{"step": 20}]
    made = drawn(spec)
    assert ">busy</text>" in made
    assert "why: 2 in flight" in made


def test_what_could_not_be_graded_is_a_gap_and_not_a_zero() -> None:
    nothing = replace(RESULT, dataset="sums", score=None, no_score="3% graded")
    spec = spec_of([at(0, {"sums": 0.5}), replace(at(20, {}), results=(nothing,))])
    assert [mark["step"] for mark in spec["datasets"]["values_0"]] == [0]
    [gap] = spec["datasets"]["gaps"]
    assert (gap["step"], gap["row"], gap["what"], gap["why"]) == (20, "no score", "sums", "no score: 3% graded")
    drawn(spec)


def test_attempts_of_a_resumed_run_are_told_apart() -> None:
    spec = spec_of([at(20, {"sums": 0.5}), at(20, {"sums": 0.6}, attempt=1), at(40, {"sums": 0.7}, attempt=1)])
    assert {"field": "line", "scale": {"domain": ["0", "1"]}, "title": "attempt", "type": "nominal"} in inside(spec, "shape")
    assert {"field": "line", "type": "nominal"} in [one for detail in inside(spec, "detail") for one in detail]
    assert "attempts 0, 1" in spec["title"]["subtitle"][0]
    assert not [shape for shape in inside(spec_of(CURVE), "shape") if isinstance(shape, dict)]


def test_points_that_are_an_attempt_each_are_one_line() -> None:
    """As those of re-evaluations are, in the order in which somebody asked for them."""
    each: list[Record] = [at(10 * step, {"sums": 0.5}, attempt=20 - step) for step in range(10)]
    spec = spec_of(each)
    assert {mark["line"] for mark in spec["datasets"]["values_0"]} == {"one point each"}
    assert not [shape for shape in inside(spec, "shape") if isinstance(shape, dict)]
    assert spec["title"]["subtitle"][0] == "10 measured points, 10 attempts"
    drawn(spec)
    trained: list[Record] = [at(step, {"sums": 0.4}) for step in (5, 15)]
    marks = spec_of([*trained, *each])["datasets"]["values_0"]
    assert {mark["line"] for mark in marks if mark["attempt"] == "0"} == {"0"}
    assert {mark["line"] for mark in marks if mark["attempt"] != "0"} == {"one point each"}


def test_what_is_thinned_has_the_lines_of_the_whole() -> None:
    resumed = [at(step, {"sums": 0.5}, attempt=(step >= 400) + (step >= 405)) for step in range(410)]
    marks = spec_of(list(resumed), most=50)["datasets"]["values_0"]
    assert {mark["line"] for mark in marks} <= {"0", "1", "2"}
    assert len(marks) < 100


def test_the_same_dataset_in_two_suites_is_two_curves() -> None:
    spec = spec_of([at(0, {"sums": 0.5}), at(0, {"sums": 0.6}, suite="nightly")])
    assert {mark["series"] for mark in spec["datasets"]["values_0"]} == {"sums · suite", "sums · nightly"}


def test_names_that_look_alike_stay_two_curves() -> None:
    spec = spec_of([at(0, {"a\x00b": 0.5, "a\x01b": 0.6})])
    assert [mark["series"] for mark in spec["datasets"]["values_0"]] == ["a b", "a b (2)"]


def test_metrics_outside_the_unit_interval_have_an_axis_of_their_own() -> None:
    spec = spec_of([measures(step, {"accuracy": 0.5, "perplexity": 30.0 - step}) for step in (0, 10)])
    shown = {name: {mark["series"] for mark in marks} for name, marks in spec["datasets"].items() if name.startswith("values")}
    assert shown == {"values_0": {"accuracy"}, "values_1": {"perplexity"}}
    assert "low" not in spec["datasets"]["values_0"][0]
    assert ">perplexity</text>" in drawn(spec)


@pytest.mark.parametrize("name", EVIL)
def test_a_name_is_never_more_than_a_value(name: str) -> None:
    records: list[Record] = [at(0, {name: 0.5}), at(1, {name: 0.6}), skipped(2, reason=name, message=name)]
    for spec in (
        spec_of(records),
        comparison_chart({"run": records}).to_dict(),
        phases_chart([at(0, {}, phases={name: 1.0})]).to_dict(),
    ):
        assert set(inside(spec, "field")) <= OURS
        assert not [key for key in ("expr", "signal", "calculate", "href", "url") if list(inside(spec, key))]
        drawn(spec)
    texts = json.dumps(spec_of(records)["datasets"], ensure_ascii=False)
    assert "\\u0000" not in texts
    assert "\u202e" not in texts


@pytest.mark.parametrize(
    "records",
    [[], [skipped(0)], [skipped(0), skipped(20, "timeout")], [at(40, {"sums": 0.5})], [measures(3, {"loss": 3.0})], CURVE],
    ids=["no point", "one skip", "only skips", "one point", "one metric", "a curve"],
)
def test_there_is_always_a_picture_some_800_pixels_wide(records: list[Record]) -> None:
    made = curve_png("run", records)
    assert made.startswith(b"\x89PNG")
    assert 550 < int.from_bytes(made[16:20], "big") < 900
    assert len(made) < 60_000
    assert made == curve_png("run", list(records))
    assert spec_of(records) == spec_of(list(records))


def test_steps_are_whole_where_there_are_few() -> None:
    assert [0, 1] in list(inside(spec_of([at(0, {"sums": 0.5}), at(1, {"sums": 0.6})]), "values"))


def test_of_a_thousand_points_the_picture_says_how_many_it_shows() -> None:
    points: list[Record] = [at(step, {"sums": 0.5 + step / 30_000}) for step in range(0, 10_000, 10)]
    gaps: list[Record] = [skipped(step) for step in range(5, 10_000, 1_000)]
    records = sorted([*points, *gaps], key=lambda record: record.point.step)
    spec = spec_of(records, most=MOST_IN_PICTURE)
    steps = [mark["step"] for mark in spec["datasets"]["values_0"]]
    assert MOST_IN_PICTURE / 2 < len(steps) <= MOST_IN_PICTURE + 1
    assert (steps[0], steps[-1]) == (0, 9_990)
    assert len(spec["datasets"]["gaps"]) == len(gaps)
    assert f"1000 measured points, {len(steps)} of them drawn, 10 skipped" in spec["title"]["subtitle"]
    assert len(spec_of(records)["datasets"]["values_0"]) == 1_000
    assert len(curve_png("run", records)) < 300_000


def test_more_datasets_than_can_be_told_apart_are_left_out_and_counted() -> None:
    spec = spec_of([at(0, {f"set {number}": 0.5 for number in range(MOST_SERIES + 3)})])
    assert len(spec["datasets"]["values_0"]) == MOST_SERIES
    assert "3 further datasets or metrics are not drawn" in spec["title"]["subtitle"]


def test_reasons_without_end_share_a_row() -> None:
    spec = spec_of([skipped(step, reason=f"reason {step}") for step in range(30)])
    rows = {gap["row"] for gap in spec["datasets"]["gaps"]}
    assert len(rows) == 8
    assert "other reasons" in rows
    assert len({gap["reason"] for gap in spec["datasets"]["gaps"]}) == 30


def test_runs_are_compared_in_a_panel_a_dataset() -> None:
    runs: dict[str, list[Record]] = {
        name: [at(step, {"sums": 0.5, "words": 0.4}, run=name) for step in (0, 10)] for name in ("first", "second")
    }
    runs["second"].append(skipped(20, run="second"))
    spec = comparison_chart(runs).to_dict()
    for panel, dataset in (("values_0", "sums"), ("values_1", "words")):
        marks = spec["datasets"][panel]
        assert {mark["series"] for mark in marks} == {dataset}
        assert [mark["run"] for mark in marks] == ["first", "first", "second", "second"]
    assert [gap["run"] for gap in spec["datasets"]["gaps"]] == ["second"]
    assert drawn(spec).count('aria-roledescription="point"') == 8 + 1
    assert comparison_png(runs) == comparison_png(dict(runs))
    assert comparison_png({}).startswith(b"\x89PNG")


def test_phases_are_stacked_in_their_order() -> None:
    spec = phases_chart([at(0, {}, phases={"export": 1.0, "pin": 2.0}), at(20, {}, phases={"export": 3.0})]).to_dict()
    found = [(mark["point"], mark["phase"], mark["seconds"]) for mark in spec["datasets"]["phases"]]
    assert found == [
        ("0", "staging (training waits)", 0.2),
        ("0", "export", 1.0),
        ("0", "pin", 2.0),
        ("20", "staging (training waits)", 0.2),
        ("20", "export", 3.0),
    ]
    assert drawn(spec).count('aria-roledescription="bar"') == 5


def test_who_draws_nothing_does_not_wait_for_the_plotting_library() -> None:
    code = "import sys, infra.charts, flows.report; print([name for name in ('altair', 'vl_convert') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

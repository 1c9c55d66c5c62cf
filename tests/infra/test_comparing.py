"""A point is compared with another on the prompts that both were asked, and what can't be compared says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.comparing import PromptScores, asked_alike, compare, with_comparisons, without_comparisons
from infra.model import EvalPoint, EvalReport, Sample
from infra.records import commit, point_prefix, write_samples
from infra.store import Store
from tests.infra.examples import REPORT, SKIPPED, report_at, sample


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path.as_uri())


def answers(right: int, of: int = 20) -> list[Sample]:
    return [sample(f"p{i}", 0, float(i < right), prompt=f"{i}+1=", answer=str(i + 1)) for i in range(of)]


def measured(store: Store, step: int, right: int, attempt: int = 0, suite_digest: str = REPORT.suite_digest) -> EvalReport:
    """A point with its samples and its record in the store."""
    report = replace(report_at(step, attempt), suite_digest=suite_digest)
    write_samples(store, report.point, "suite", "sums", answers(right))
    commit(store, with_comparisons(store, report))
    return report


def new(store: Store, step: int, right: int, attempt: int = 0) -> EvalReport:
    """A report as it is before it is committed: its samples are in the store."""
    report = report_at(step, attempt)
    write_samples(store, report.point, "suite", "sums", answers(right))
    return with_comparisons(store, report)


def test_a_point_is_compared_with_the_previous_one_and_the_baseline(store: Store) -> None:
    for step, right in ((0, 2), (20, 8)):
        measured(store, step, right)
    previous, baseline = (report := new(store, 40, 12)).comparisons
    assert (previous.against, previous.other) == ("previous", EvalPoint(run="run", step=20))
    assert (baseline.against, baseline.other) == ("baseline", EvalPoint(run="run", step=0))
    assert previous.difference is not None
    assert baseline.difference is not None
    assert (previous.difference.mean, baseline.difference.mean) == pytest.approx((0.2, 0.5))
    assert (baseline.difference.gained, baseline.difference.lost, baseline.difference.verdict) == (10, 0, "higher")
    assert report.points_so_far == 3


def test_the_first_measured_point_is_compared_with_nothing(store: Store) -> None:
    assert new(store, 0, 3).comparisons == ()


def test_a_skipped_point_is_not_the_previous_one_and_a_later_step_neither(store: Store) -> None:
    measured(store, 0, 2)
    commit(store, replace(SKIPPED, point=EvalPoint(run="run", step=20)))
    measured(store, 60, 9)
    previous, _ = new(store, 40, 4).comparisons
    assert previous.other == EvalPoint(run="run", step=0)


def test_a_resumed_run_is_compared_with_its_own_past(store: Store) -> None:
    measured(store, 20, 2)
    measured(store, 40, 4, attempt=2)
    measured(store, 40, 6, attempt=1)
    previous, baseline = new(store, 60, 8, attempt=1).comparisons
    assert previous.other == EvalPoint(run="run", step=40, attempt=1)
    assert baseline.other == EvalPoint(run="run", step=20)


def test_points_of_a_suite_that_has_changed_are_not_compared_and_it_says_so(store: Store) -> None:
    measured(store, 0, 2, suite_digest="6" * 32)
    previous, baseline = new(store, 20, 4).comparisons
    assert previous.difference is baseline.difference is None
    assert "suite has changed since run · step 000000" in previous.reason


def at_fault(report: EvalReport, dataset: str) -> EvalReport:
    results = [
        replace(one, digest="", n_samples=0, score=None, no_score="torn") if one.dataset == dataset else one
        for one in report.results
    ]
    return replace(report, results=tuple(results), suite_digest=f"without {dataset}".ljust(32))


def test_a_dataset_at_fault_costs_no_other_its_comparison(store: Store) -> None:
    results = tuple(replace(REPORT.results[0], dataset=name, digest=name * 8) for name in ("sums", "words"))
    made = []
    for step, right in ((0, 2), (20, 8), (40, 12)):
        report = replace(report_at(step), results=results)
        for name in ("sums", "words"):
            write_samples(store, report.point, "suite", name, answers(right))
        report = at_fault(report, "words") if step == 20 else report
        made.append(with_comparisons(store, report))
        commit(store, made[-1])
    found = {(one.dataset, one.against): one for one in made[1].comparisons}
    assert found["sums", "previous"].difference is not None
    assert found["words", "previous"].reason == "run · step 000020 has no score: torn"
    found = {(one.dataset, one.against): one for one in made[2].comparisons}
    assert found["sums", "previous"].other == found["words", "previous"].other == EvalPoint(run="run", step=20)
    assert found["words", "previous"].reason == "run · step 000020 has no score: torn"
    assert found["words", "baseline"].difference is not None
    edited = replace(made[2], results=(replace(results[0], digest="edited"), results[1]), suite_digest="6" * 32)
    assert asked_alike(made[0], made[1])
    assert not asked_alike(made[0], edited)
    assert not asked_alike(at_fault(edited, "words"), made[0])


def test_samples_that_are_gone_cost_the_comparison_and_not_the_report(store: Store) -> None:
    measured(store, 0, 2)
    store.delete(f"{point_prefix(EvalPoint(run='run', step=0), 'suite')}/samples")
    previous, _ = new(store, 20, 4).comparisons
    assert previous.difference is None
    assert "samples are not in the store" in previous.reason


@pytest.mark.parametrize(
    ("name", "torn"),
    [
        ("sums.jsonl", b'{"problem_id": "p0", "ind'),
        ("sums.jsonl", b"{}\n"),
        ("sums.jsonl", b"\xff\n"),
        ("sums/x.parquet", b"PAR1"),
    ],
)
def test_samples_that_can_not_be_read_cost_the_comparison_and_not_the_report(store: Store, name: str, torn: bytes) -> None:
    measured(store, 0, 2)
    samples = f"{point_prefix(EvalPoint(run='run', step=0), 'suite')}/samples"
    store.delete(samples)
    store.write(f"{samples}/{name}", torn)
    previous, _ = new(store, 20, 4).comparisons
    assert previous.difference is None
    assert "can't be read" in previous.reason


def test_a_torn_record_of_an_earlier_point_costs_the_comparison_and_not_the_report(store: Store) -> None:
    measured(store, 0, 2)
    store.write(f"{point_prefix(EvalPoint(run='run', step=0), 'suite')}/record.json", b'{"kind": "rep')
    previous, _ = new(store, 20, 4).comparisons
    assert previous.difference is None
    assert "earlier points can't be read" in previous.reason


def test_prompts_are_paired_by_id_and_content(store: Store) -> None:
    points = [report_at(step) for step in (0, 20)]
    edited = [replace(one, prompt="another") if one.problem_id == "p0" else one for one in answers(5)]
    write_samples(store, points[0].point, "suite", "sums", answers(5))
    write_samples(store, points[1].point, "suite", "sums", reversed(edited))
    made = compare(PromptScores(store, "suite"), points[1], points[0], "sums", "asked")
    assert made.difference is not None
    assert (made.difference.n, made.difference.mean, made.unpaired) == (19, 0.0, 2)


def test_a_prompt_that_has_a_grade_at_one_point_only_is_left_out(store: Store) -> None:
    points = [report_at(step) for step in (0, 20)]
    ungraded = [replace(one, reward=None) if one.problem_id in ("p0", "p1") else one for one in answers(5)]
    write_samples(store, points[0].point, "suite", "sums", answers(5))
    write_samples(store, points[1].point, "suite", "sums", ungraded)
    made = compare(PromptScores(store, "suite"), points[1], points[0], "sums", "asked")
    assert made.difference is not None
    assert (made.difference.n, made.unpaired) == (18, 2)


def test_without_a_common_prompt_there_is_a_reason_and_no_number(store: Store) -> None:
    points = [report_at(step) for step in (0, 20)]
    write_samples(store, points[0].point, "suite", "sums", [sample("a")])
    write_samples(store, points[1].point, "suite", "sums", [sample("b")])
    made = compare(PromptScores(store, "suite"), points[1], points[0], "sums", "asked")
    assert (made.difference, made.reason) == (None, "no prompt has a grade at both points")


@pytest.mark.parametrize("refused", [0, 1])
def test_what_has_no_score_because_too_much_failed_has_no_difference_either(store: Store, refused: int) -> None:
    """The prompts that were graded after all may be the easy ones."""
    points = [report_at(step) for step in (0, 20)]
    for report in points:
        write_samples(store, report.point, "suite", "sums", answers(5))
    result = replace(points[refused].results[0], score=None, no_score="60 of 100 samples got no answer")
    points[refused] = replace(points[refused], results=(result,))
    made = compare(PromptScores(store, "suite"), points[1], points[0], "sums", "asked")
    step = points[refused].point.name
    assert (made.difference, made.reason) == (None, f"{step} has no score: 60 of 100 samples got no answer")


def test_a_black_box_has_no_samples_to_compare(store: Store) -> None:
    measured(store, 0, 2)
    metrics = replace(report_at(20), results=(), metrics={"mmlu": 0.5})
    assert with_comparisons(store, metrics) == metrics


def test_every_dataset_says_why_it_is_compared_with_nothing() -> None:
    made = without_comparisons(REPORT, "too slow").comparisons
    assert [(one.dataset, one.against, one.reason) for one in made] == [
        ("sums", "previous", "too slow"),
        ("sums", "baseline", "too slow"),
    ]

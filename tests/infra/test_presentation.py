"""Records as people read them: nothing in them can inject markup."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from infra.model import Comparison, Estimate, EvalPoint, FileEntry, Lengths, PairedDifference, ProofLevel, SkippedPoint
from infra.presentation import comparison_markdown, history_key, history_rows, report_markdown, score_rows, score_text
from tests.infra.examples import DIGEST, MANIFEST, REPORT, RESULT, SKIPPED, proof, report_at


def test_what_is_called_as_a_column_of_ours_has_one_of_its_own() -> None:
    (row,) = history_rows([replace(REPORT, results=(), metrics={"step": 7.5, "lag": 0.2, "loss": 1.0})])
    assert (row["step"], row["step (score)"], row["lag (score)"], row["loss"]) == (str(REPORT.point.step), "7.5", "0.2", "1")


def test_a_score_is_shown_with_its_interval_or_as_none() -> None:
    assert score_text(RESULT) == "0.500 [0.30, 0.70]"
    assert score_text(replace(RESULT, score=None)) == "no score"


def test_every_dataset_has_a_row_with_coverage_and_version() -> None:
    (row,) = score_rows(REPORT)
    assert (row["dataset"], row["coverage"]) == ("sums", "100.0%")
    assert (row["weight_version/mean"], row["mixed_version_ratio"]) == ("10", "0")


HALF = Estimate(mean=0.5, stderr=0.1, low=0.3, high=0.7, n=10)
MEASURED = replace(
    RESULT,
    truncated_ratio=0.25,
    score_completed=replace(HALF, mean=0.6),
    pass_at_k={1: HALF, 4: replace(HALF, mean=0.9)},
    lengths=Lengths(mean=30.0, p10=5.0, p50=20.4, p90=64.0, p99=99.6, longest=128, n=40),
    repetition_ratio=0.05,
)
ROSE = PairedDifference(
    mean=0.125, stderr=0.04, n=10, gained=4, lost=1, low=0.045, high=0.205, p_value=0.007, method="t", minimum_detectable=0.126
)
PREVIOUS = Comparison(dataset="sums", against="previous", other=EvalPoint(run="run", step=5), difference=ROSE, unpaired=2)
BASELINE = Comparison(dataset="sums", against="baseline", other=EvalPoint(run="run", step=0), reason="its samples | are gone")
COMPARED = replace(REPORT, results=(MEASURED,), comparisons=(PREVIOUS, BASELINE), points_so_far=12)


def test_a_row_has_the_deltas_with_their_intervals_and_what_the_responses_are_like() -> None:
    (row,) = score_rows(COMPARED)
    assert row["vs previous"] == "+0.125 [+0.045, +0.205] higher"
    assert row["vs baseline"] == "–"
    assert row["pass@k"] == "@1 0.500, @4 0.900"
    assert row["completed only"] == "0.600 [0.30, 0.70]"
    assert row["tokens p50 / p90 / p99 / max"] == "20 / 64 / 100 / 128"
    assert (row["truncated"], row["looping"]) == ("25.0%", "5.0%")


def test_a_report_of_before_these_numbers_were_noted_has_dashes_for_them() -> None:
    (row,) = score_rows(REPORT)
    for column in ("vs previous", "vs baseline", "pass@k", "completed only", "tokens p50 / p90 / p99 / max", "looping"):
        assert row[column] == "–"


def test_a_report_page_sets_each_dataset_beside_the_previous_point_and_the_baseline() -> None:
    page = report_markdown(COMPARED, MANIFEST)
    for text in (
        "## Beside earlier points",
        r"| sums | previous, step 5 | \+0.125 \[\+0.045, \+0.205\] | higher | 0.007 t | 10 | 4 / 1 | 0.126 |",
        "| sums | baseline, step 0 | – | – | – | – | – | – |",
        "baseline: its samples &#124; are gone",
        "2 prompts that only one of both points has a grade for are left out",
        "12 points x 1 dataset are 12 comparisons",
        r"| sums | 0.500 \[0.30, 0.70\] | \+0.125 \[\+0.045, \+0.205\] higher | – | 10 x 1 |",
        r"| sums | 10 ok | 25.0% | 0.600 \[0.30, 0.70\] | 1.0 |",
        "| sums | @1 0.500, @4 0.900 | – | 20 / 64 / 100 / 128 | 5.0% |",
    ):
        assert text in page


def test_the_page_of_a_first_point_has_nothing_beside_it() -> None:
    assert "Beside earlier points" not in report_markdown(REPORT, MANIFEST)


def test_a_difference_without_an_interval_says_so_instead_of_showing_none() -> None:
    alone = replace(ROSE, low=None, high=None, p_value=None, method="", minimum_detectable=None, note="one prompt in common")
    page = report_markdown(replace(COMPARED, comparisons=(replace(PREVIOUS, difference=alone),)), MANIFEST)
    assert r"\+0.125 \(no interval\) | can't be told | – |" in page
    assert "sums, previous: one prompt in common" in page


def test_a_skipped_point_keeps_its_place_and_says_why() -> None:
    skip = replace(SKIPPED, point=EvalPoint(run="run", step=20), message="full\n| x |")
    rows = history_rows([report_at(10), skip, report_at(30, attempt=1)])
    assert [row["step"] for row in rows] == ["10", "20", "30 (attempt 1)"]
    assert [row["sums"] for row in rows] == [score_text(RESULT), "–", score_text(RESULT)]
    assert rows[1]["skipped"] == "busy: full | x |"
    assert rows[0]["lag"] == "3"


def test_all_rows_have_the_same_columns_also_with_two_suites() -> None:
    skip: SkippedPoint = replace(SKIPPED, suite="other")
    rows = history_rows([report_at(10), skip])
    assert rows[0].keys() == rows[1].keys()
    assert [row["suite"] for row in rows] == ["suite", "other"]


def test_a_report_page_names_the_weights_the_proof_and_the_phases() -> None:
    page = report_markdown(REPORT, replace(MANIFEST, files={"a": FileEntry(size=1_234_567, digest="f" * 32)}))
    for text in (DIGEST, REPORT.weight_version, "content", "1,234,567 bytes", "| pin | 1.00 |"):
        assert text in page


def test_a_report_page_says_how_much_of_the_data_was_not_measured() -> None:
    page = report_markdown(replace(REPORT, results=(replace(RESULT, bad_rows=3, too_long=2),)), MANIFEST)
    assert "* sums: 3 bad rows of the data passed over" in page
    assert "* sums: 2 prompts longer than the context" in page
    assert "None: every sample was asked for, came, and was graded." in report_markdown(REPORT, MANIFEST)


def test_a_report_page_says_what_was_not_graded_which_engine_was_lost_and_what_is_not_compared() -> None:
    result = replace(
        RESULT, score=None, no_score="40% failed", coverage=0.6, worst=0.3, best=0.7, outcomes={"ok": 6, "infra_error": 4}
    )
    twice = (proof("a"), proof("b"), proof("a"))
    left_out = replace(PREVIOUS, other=None, difference=None, unpaired=0, reason="the store was slow")
    page = report_markdown(replace(REPORT, results=(result,), proofs=twice, comparisons=(left_out,)), MANIFEST)
    section = page.partition("## Skipped or failed parts")[2].partition("##")[0]
    for text in (
        "4 samples got no response",
        "0.300, 0.700",
        "no score: 40% failed",
        "engine a was lost",
        "the store was slow",
    ):
        assert text in section
    assert "Beside earlier points" not in page


def test_a_report_page_says_where_everything_is_and_how_to_read_it() -> None:
    page = report_markdown(REPORT, MANIFEST, store_url="file:///my store")
    for text in (
        "`file:///my store/runs/run/points/step00000010-a0/suite/record.json`",
        "samples of sums: `file:///store/samples`",
        "`pinpoint report run --html report.html --store 'file:///my store'`",
        "[curve](../key/curve-run) · [history](../key/history-run) · [beside other runs](../key/comparison-suite)",
    ):
        assert text in page


def test_the_report_page_of_a_live_point_claims_no_more_than_labels() -> None:
    said = replace(proof("10.0.0.1:30000", "40", ""), level=ProofLevel.LIVE)
    page = report_markdown(replace(REPORT, snapshot_digest=None, weight_version="40", proofs=(said,)), None)
    for text in ("Weight version 40, a label of the trainer", "| 10.0.0.1:30000 | live |", "What it holds was not looked at"):
        assert text in page
    for text in ("Snapshot", "manifest", "checksum", "content"):
        assert text not in page


def test_what_an_engine_says_of_itself_cannot_break_the_report_page() -> None:
    hostile = replace(REPORT, proofs=(proof("a|b", checksum="x` | <b>\n# y"),))
    page = report_markdown(hostile, MANIFEST)
    assert "<b>" not in page
    assert "\n# y" not in page


@pytest.mark.parametrize("run", ["Qwen3_0.6B", "a", "a--", "run-1", "Run_1", "RUN-1"])
def test_the_key_of_a_history_is_one_that_prefect_takes_and_belongs_to_one_run(run: str) -> None:
    assert re.fullmatch("[a-z0-9-]+", history_key(run))
    others = {"run-1", "Run_1", "RUN-1", "run_1"} - {run}
    assert history_key(run) not in {history_key(other) for other in others}


def test_a_plain_run_name_is_its_own_key() -> None:
    assert history_key("demo-1") == "history-demo-1"


def test_a_runs_newest_point_is_its_latest_step_and_not_what_was_evaluated_again_since() -> None:
    page = comparison_markdown("suite", {"run": [report_at(200), report_at(20, attempt=3)]}, "")
    assert "newest, step 200" in page

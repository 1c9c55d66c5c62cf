"""Records as people read them: nothing in them can inject markup."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model import EvalPoint, FileEntry, ProofLevel, SkippedPoint
from infra.presentation import MAX_TEXT, escaped, history_key, history_rows, plain, report_markdown, score_rows, score_text
from tests.infra.examples import DIGEST, MANIFEST, REPORT, RESULT, SKIPPED, proof, report_at

HOSTILE = (
    "a | b | c",
    "`code`",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![x](http://evil/?leak)",
    "line\n# heading\r\n| row |",
    "\x1b[2J\x1b]8;;http://evil\x07",
    "\u202egnp.exe",
    "\u200f\u061c\u2066mixed",
    "\ud800",
    "nul\0",
    "~~~\n**bold** __x__ &lt;b&gt; $$x$$",
    "x" * 1_000_000,
)
ALLOWED = re.compile(r"(?:&#\d+;|[^\\`*_{}\[\]()<>#+!|~$&\x00-\x1f\x7f-\x9f])*")


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_untrusted_text_cannot_inject_markup(text: str) -> None:
    assert ALLOWED.fullmatch(escaped(text))
    line = plain(text)
    assert len(line.splitlines()) <= 1
    assert len(line) <= MAX_TEXT
    line.encode("utf-8")
    assert not any(character in line for character in "\x1b\x07\0\u202e\u200f\u200e\u061c\u2066\u2028")


@given(st.text(max_size=400))
def test_no_text_at_all_can_inject_markup(text: str) -> None:
    assert ALLOWED.fullmatch(escaped(text))


def test_ordinary_text_stays_as_it_is() -> None:
    assert plain("engine a: 503, später") == "engine a: 503, später"


def test_a_score_is_shown_with_its_interval_or_as_none() -> None:
    assert score_text(RESULT) == "0.500 [0.30, 0.70]"
    assert score_text(replace(RESULT, score=None)) == "no score"


def test_every_dataset_has_a_row_with_coverage_and_version() -> None:
    (row,) = score_rows(REPORT)
    assert (row["dataset"], row["coverage"]) == ("sums", "100.0%")
    assert (row["weight_version/mean"], row["mixed_version_ratio"]) == ("10", "0")


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

"""The page holds what can be read, the same whenever it is made, says what it leaves out, and lets nothing of a record run."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from infra.model import EvalPoint, Sample, SampleOutcome
from infra.records import commit, history
from infra.report_page import details, view
from infra.report_page.excerpts import KINDS, excerpts
from infra.report_page.rendering import page
from infra.report_page.text import MOST_CELL, bounded, shown, visible
from infra.report_page.view import view_of
from infra.store import Store
from tests.infra.examples import REPORT, RESULT, SKIPPED, sample
from tests.infra.measured_runs import HIDDEN, MARKUP, hostile_run, measured, samples_of, skipped


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


def written(store: Store, run: str = "run", each: int = 3) -> str:
    return page(store, run, history(store, run), each)


class Elements(HTMLParser):
    """Tags, attributes and policy of a page, as a browser would take them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@pytest.mark.parametrize(
    ("text", "seen"), [("a\u202eb", "a⟨U+202E⟩b"), ("\x1b[0m", "⟨U+001B⟩[0m"), ("a\r\nb\tc", "a\nb\tc"), ("\ud800", "⟨U+D800⟩")]
)
def test_what_hides_in_a_text_is_seen(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_other_scripts_stay_as_they_are() -> None:
    assert visible("四十二 ٤٢ אַרבעים 🧮 é") == "四十二 ٤٢ אַרבעים 🧮 é"


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert bounded("a" * 10 + "b" * 980 + "c" * 10, 20) == "a" * 10 + "\n⟨… 980 characters left out …⟩\n" + "c" * 10
    assert bounded("short", 20) == "short"
    assert len(shown("x" * 10**6)) < MOST_CELL + 100


def test_some_samples_of_each_kind_are_shown_and_all_are_counted(store: Store) -> None:
    report = measured(store, 20, right=10)
    found = excerpts(store, report, report.results[0], 3)
    assert found.counts == (("right", 10), ("wrong", 8), ("truncated", 1), ("not graded", 1))
    assert [one.kind for one in found.shown] == ["right"] * 3 + ["wrong"] * 3 + ["truncated", "not graded"]
    assert found.left_out == 12


def test_the_same_prompts_are_shown_of_each_point_in_whatever_order_they_were_written(store: Store) -> None:
    samples = samples_of(18)
    first, second = measured(store, 20, samples=samples), measured(store, 40, samples=samples[::-1])
    shown_of = [{one.problem for one in excerpts(store, point, point.results[0], 3).shown} for point in (first, second)]
    assert shown_of[0] == shown_of[1]


def test_a_sample_between_right_and_wrong_is_a_kind_of_its_own(store: Store) -> None:
    partly = [sample("half", reward=0.5), sample("none", reward=0.0, outcome=SampleOutcome.NO_ANSWER)]
    report = measured(store, 20, samples=partly)
    found = excerpts(store, report, report.results[0], 3)
    assert [(one.kind, one.outcome) for one in found.shown] == [("partly right", "ok"), ("wrong", "no_answer")]
    assert {one.kind for one in found.shown} < set(KINDS)


def test_a_point_whose_samples_are_gone_or_damaged_says_so(store: Store, tmp_path: Path) -> None:
    report = measured(store, 20)
    for file, dataset in zip(sorted((tmp_path / "store").rglob("*.parquet")), ("sums", "words"), strict=True):
        assert dataset in str(file)
        file.unlink() if dataset == "sums" else file.write_bytes(b"torn")
    gone, damaged = (excerpts(store, report, result, 3).missing for result in report.results)
    assert gone == "its samples are no longer in the store"
    assert damaged.startswith("its samples can't be read: ")
    assert gone in written(store)


def test_what_became_of_each_point_is_on_the_page(store: Store) -> None:
    measured(store, 0, 8)
    measured(store, 20, 12)
    skipped(store, 40)
    made = written(store)
    for text in (
        "0.600 [0.50, 0.70]",
        "skipped, busy: 2 in flight",
        "+0.100 [+0.050, +0.150]",
        "higher",
        "engine-1",
        "run datasets",
    ):
        assert text in made
    assert "3 points" in made
    assert '<span class="skipped">1 skipped</span>' in made


def test_the_page_is_the_same_whenever_it_is_made(store: Store) -> None:
    hostile_run(store)
    assert written(store) == written(store)


def test_nothing_of_a_record_becomes_markup(store: Store) -> None:
    plain, hostile = Store(f"{store.url}/plain"), Store(f"{store.url}/hostile")
    for step in (0, 20, 60):
        measured(plain, step, samples=[*samples_of(10), *[sample(f"x{i}", reward=0.5) for i in range(2)]])
    skipped(plain, 40)
    skipped(plain, 80)
    hostile_run(hostile)
    expected, found = Elements(written(plain)), Elements(written(hostile))
    assert set(found.tags) == set(expected.tags)
    assert found.tags.count("script") == 2
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert {value for name, value in found.attributes if name == "src" and not str(value).startswith("data:image/png")} == set()


def test_what_hides_is_shown_on_the_page_by_its_number(store: Store) -> None:
    hostile_run(store)
    made = written(store)
    assert not re.search("[\u202a-\u202e\u200b\x00\x1b\ud800]", made)
    assert "⟨U+202E⟩right to left" in made
    assert MARKUP not in made
    assert HIDDEN not in made


def test_the_policy_names_the_page_s_own_scripts_and_allows_no_request(store: Store) -> None:
    measured(store, 0)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', written(store))
    assert policy
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe-eval" not in policy[1]
    assert "http" not in policy[1]
    assert re.search(r"script-src [^;]*unsafe-inline", policy[1]) is None


def test_a_megabyte_in_every_text_does_not_make_the_page_large(store: Store) -> None:
    hostile_run(store)
    assert len(written(store).encode()) < 1_800_000


def test_a_thousand_points_make_a_page_of_bounded_size_that_counts_what_it_leaves_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1_000):
        commit(store, replace(REPORT, point=EvalPoint(run="run", step=step)))
    made = written(store)
    assert "The newest 200 of 1000 points." in made
    assert len(made.encode()) < 4_000_000
    monkeypatch.setattr(view, "MOST_ROWS", 300)
    assert "The newest 300 of 1000 points." in written(store)


def test_samples_are_of_the_newest_points_once_there_are_too_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (0, 20, 40):
        measured(store, step)
    for limit in ("MOST_CHARACTERS", "MOST_SAMPLED"):
        with monkeypatch.context() as patched:
            patched.setattr(details, limit, 1)
            newest, *others = view_of(store, "run", history(store, "run"), 3).details
            assert [one.dataset for one in newest.samples] == ["sums", "words"]
            assert {other.no_samples for other in others} == {
                "only the newest points have them here, or the page would be too large"
            }
            assert "or the page would be too large" in written(store)


def test_no_samples_are_read_where_none_are_asked_for(store: Store) -> None:
    measured(store, 0)
    assert "No samples of this point are here: none were asked for." in written(store, each=0)


def test_a_black_box_and_a_run_without_any_number_have_a_page_too(store: Store) -> None:
    commit(store, replace(REPORT, results=(), proofs=(), metrics={"accuracy": 0.5, "loss": 3.0}))
    made = written(store)
    assert "verified and given to a black box" in made
    assert "a black box keeps its own" in made
    commit(store, replace(SKIPPED, point=EvalPoint(run="other", step=0)))
    assert "1 skipped" in written(store, "other")
    assert "There are no points yet." in page(store, "none", [], 3)


def test_a_dataset_without_a_score_says_why(store: Store) -> None:
    nothing = replace(RESULT, score=None, no_score="3% graded")
    commit(store, replace(REPORT, results=(nothing,)))
    assert "no score: 3% graded" in written(store)


def test_a_prompt_in_many_lines_is_named_by_its_first_words(store: Store) -> None:
    texts: list[Sample] = [sample("a", prompt="\n\n  What\nis\tthis?" + " and that" * 100)]
    report = measured(store, 0, samples=texts)
    [one] = excerpts(store, report, report.results[0], 3).shown
    assert one.begins.startswith("What is this? and that")
    assert len(one.begins) < 150

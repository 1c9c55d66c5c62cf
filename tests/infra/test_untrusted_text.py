"""Untrusted text is read and never obeyed: nothing in it becomes markup, a link, a picture or a line of its own."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model import EvalPoint, EvalReport
from infra.presentation import (
    MAX_TEXT,
    code,
    comparison_markdown,
    curve_markdown,
    escaped,
    fenced,
    history_rows,
    plain,
    report_markdown,
    score_rows,
)
from infra.presentation.transcripts import KINDS, Transcript
from tests.infra.examples import MANIFEST, REPORT, RESULT, SKIPPED, proof, sample
from tests.infra.hostile import HOSTILE, rendered, text_of

PICTURE = "data:image/png;base64,AAAA"
NEVER_OURS = {"html_block", "html_inline", "s_open", "hr", "code_block", "ordered_list_open", "blockquote_open", "hardbreak"}


def ids(text: str) -> str:
    return ascii(text[:20])


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_text_in_a_page_is_that_text_and_nothing_else(text: str) -> None:
    assert text_of(escaped(text)) == without_joints(plain(text))


@given(st.text(max_size=400))
def test_no_text_at_all_becomes_markup(text: str) -> None:
    assert text_of(escaped(text)).split() == without_joints(plain(text)).split()


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_a_line_is_short_and_has_no_control_characters(text: str) -> None:
    line = plain(text)
    assert len(line.splitlines()) <= 1
    assert len(line) <= MAX_TEXT
    line.encode("utf-8")
    assert not any(character in line for character in "\x1b\x07\0\u202e\u200f\u200e\u061c\u2066\u2028")


def test_ordinary_text_stays_as_it_is() -> None:
    assert plain("engine a: 503, später") == escaped("engine a: 503, später") == "engine a: 503, später"


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_an_address_in_a_page_is_no_link_for_readers_that_make_links_of_bare_addresses(text: str) -> None:
    assert not re.search(r"https?:|www\.|me@|javascript:/", escaped(text))


def test_a_very_long_word_may_break_so_that_no_page_is_wider_than_its_place() -> None:
    words = re.split("[\u200b ]", escaped("x" * 1000))
    assert max(map(len, words)) <= 28
    assert "\u200b" not in escaped("an ordinary sentence of ordinary words")


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_a_block_stays_a_block_whatever_is_in_it(text: str) -> None:
    [block] = rendered(f"{fenced(text, 900)}\n")
    assert (block.type, block.info) == ("fence", "")
    assert len(block.content) < 4000
    assert all(len(line) <= 90 for line in block.content.splitlines())
    assert not any(character in block.content for character in "\x1b\0\u202e\ud800\r\u2028")


@given(st.text(max_size=1500))
def test_no_text_at_all_leaves_its_block(text: str) -> None:
    [block] = rendered(f"{fenced(text, 600)}\n")
    assert (block.type, block.info) == ("fence", "")


def test_a_block_is_exact_but_for_what_it_says_it_leaves_out() -> None:
    assert fenced("two\n  lines", 100) == "```\ntwo\n  lines\n```"
    assert fenced("a" * 40 + "b" * 40, 60) == f"```\n{'a' * 40}\n… 20 of 80 characters are left out …\n{'b' * 20}\n```"
    many = fenced("\n".join(map(str, range(100))), 1000)
    assert "… 70 lines are left out …" in many
    assert fenced("e\u202ex", 100) == "```\ne⟨U+202E⟩x\n```"


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_a_code_span_stays_one(text: str) -> None:
    kinds = [token.type for token in rendered(f"at {code(text)}.")]
    assert kinds == ["paragraph_open", "inline", "text", "code_inline", "text", "paragraph_close"]


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_pages_have_no_links_pictures_or_markup_but_their_own(text: str) -> None:
    skip = replace(SKIPPED, point=EvalPoint(run="run", step=20), reason=text, message=text, suite=text)
    for page in (
        report_markdown(hostile_report(text), MANIFEST, transcripts=transcripts(text), store_url=f"file:///{text}"),
        report_markdown(hostile_report(text), None, unread=text),
        report_markdown(replace(hostile_report(text), results=(), metrics={text: 1.0}), MANIFEST),
        curve_markdown("run", [hostile_report(text), skip], PICTURE, text),
        comparison_markdown(text, {"run": [hostile_report(text), skip], text: [hostile_report(text)]}, PICTURE, note=text),
    ):
        tokens = rendered(page)
        assert not {token.type for token in tokens} & NEVER_OURS
        hrefs = {str(token.attrs["href"]) for token in tokens if token.type == "link_open"}
        assert all(href.startswith(("../key/curve-", "../key/history-", "../key/comparison-")) for href in hrefs)
        assert {token.attrs["src"] for token in tokens if token.type == "image"} <= {PICTURE}
        assert not any(token.info for token in tokens if token.type == "fence")
        assert len(page) < 40_000


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_a_page_has_the_sections_and_tables_of_an_ordinary_one(text: str) -> None:
    tame = outline(report_markdown(hostile_report("plain"), MANIFEST, transcripts=transcripts("plain")))
    assert outline(report_markdown(hostile_report(text), MANIFEST, transcripts=transcripts(text))) == tame


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_a_cell_of_a_table_holds_all_of_its_text(text: str) -> None:
    tokens = rendered(report_markdown(hostile_report(text), MANIFEST))
    cells = [tokens[place + 1] for place, token in enumerate(tokens) if token.type == "td_open"]
    shown = ["".join(part.content for part in cell.children or ()) for cell in cells]
    assert without_joints(shown[0]) == without_joints(plain(text))
    assert shown[4] == "10 x 1"


@pytest.mark.parametrize("text", HOSTILE, ids=ids)
def test_rows_of_tables_are_short_lines(text: str) -> None:
    [score], [point] = score_rows(hostile_report(text)), history_rows([hostile_report(text)])
    for cell in map(str, (*score, *score.values(), *point, *point.values())):
        assert len(cell.splitlines()) <= 1
        assert len(cell) <= MAX_TEXT


def without_joints(text: str) -> str:
    return re.sub("[\u2060\u200b]", "", text)


def hostile_report(text: str) -> EvalReport:
    result = replace(RESULT, dataset=text, no_score=text, score=None, samples_location=text, outcomes={"ok": 1, text: 1})
    return replace(
        REPORT, results=(result,), suite=text, weight_version=text, proofs=(proof(text, text, text),), finished_at=text
    )


def transcripts(text: str) -> list[Transcript]:
    said = sample(text, prompt=text, response=text, answer="\n" + text, detail=text)
    return [Transcript(kind=kind, dataset=text, sample=said) for kind in KINDS]


def outline(page: str) -> list[str]:
    """Headings, and how many cells each table has."""
    return [token.tag for token in rendered(page) if token.type in ("heading_open", "th_open", "td_open", "tr_open", "fence")]

"""One right, one wrong and one truncated response of a point: the first of each, in the order of the suite and its problems."""

from __future__ import annotations

from collections.abc import Iterator

from infra.model import Sample, SampleOutcome
from infra.presentation import Transcript, chosen, transcripts_markdown
from infra.presentation.transcripts import MOST_LOOKED_AT
from tests.infra.examples import sample

CUT = SampleOutcome.TRUNCATED


def test_the_first_of_each_kind_is_chosen_whatever_comes_after() -> None:
    sums = [sample("a", reward=0.0), sample("b", reward=0.5), sample("c"), sample("d", outcome=CUT), sample("e")]
    assert [(one.kind, one.sample.problem_id) for one in chosen({"sums": sums})] == [
        ("right", "c"),
        ("wrong", "a"),
        ("truncated", "d"),
    ]


def test_another_dataset_has_what_the_first_one_lacks() -> None:
    made = chosen({"sums": [sample("a")], "more": [sample("b"), sample("c", reward=0.0)]})
    assert [(one.kind, one.dataset) for one in made] == [("right", "sums"), ("wrong", "more")]


def test_a_truncated_response_is_neither_right_nor_wrong_and_one_without_a_grade_is_nothing() -> None:
    assert [one.kind for one in chosen({"sums": [sample(outcome=CUT), sample(reward=None)]})] == ["truncated"]


def test_no_more_samples_are_read_than_it_takes() -> None:
    read: list[int] = []

    def endless() -> Iterator[Sample]:
        for number in range(10 * MOST_LOOKED_AT):
            read.append(number)
            yield sample(str(number))

    assert [one.kind for one in chosen({"sums": endless(), "more": [sample(reward=0.0)]})] == ["right", "wrong"]
    assert len(read) == MOST_LOOKED_AT
    read.clear()
    chosen({"first": [sample(), sample(reward=0.0), sample(outcome=CUT)], "sums": endless()})
    assert read == []


def test_a_transcript_says_which_sample_it_is_and_how_much_of_it_is_shown() -> None:
    long = sample("p7", index=2, response="word " * 400, reward=0.25, completion_tokens=400, detail="close")
    page = transcripts_markdown([Transcript(kind="wrong", dataset="sums", sample=long)])
    for text in (
        "### Wrong: sums",
        "problem p7, sample 2: reward 0.25, 400 tokens, expected `2`",
        "**Response** (2,000 characters, shortened)",
        "… 1,100 of 2,000 characters are left out …",
        "Grader: close",
        "No response was right or truncated, of the first 2,000 of each dataset.",
    ):
        assert text in page


def test_samples_that_can_not_be_read_are_a_reason_and_no_page_less() -> None:
    assert transcripts_markdown([], "The samples can't be read: gone") == "The samples can't be read: gone"

"""A dataset is read row by row and checked before anything is asked of an engine; a row that can't be used is named."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from infra.datasets import load_dataset, load_problems, read_problems, suite_digest
from infra.errors import ConfigError, DatasetError
from infra.model import Choices, DatasetSpec, Problem, ReasoningGymSource, Sampling, Suite
from tests.infra.examples import jsonl

GOOD = '{"prompt": "1+1=", "answer": 2}'


def spec_of(folder: Path, *lines: str, **changes: Any) -> DatasetSpec:
    return DatasetSpec(name="d", source=jsonl(folder / "d.jsonl", *lines), **changes)


def gym(seed: int = 0, size: int = 5, family: str = "basic_arithmetic", **config: Any) -> DatasetSpec:
    source = ReasoningGymSource(reasoning_gym=family, size=size, seed=seed, config=config)
    return DatasetSpec(name="g", source=source, grader="reasoning_gym")


def test_rows_become_problems_in_file_order(tmp_path: Path) -> None:
    problems = load_problems(spec_of(tmp_path, GOOD, '{"id": "x", "prompt": "2+2=", "answer": "4"}'))
    assert [(p.id, p.prompt, p.answer) for p in problems] == [("1", "1+1=", "2"), ("x", "2+2=", "4")]


def test_a_template_is_filled_from_the_row(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, '{"q": {"a": 1}, "gold": 0}', prompt_template="Q: {q[a]}", answer_key="gold")
    assert [(p.prompt, p.answer) for p in load_problems(spec)] == [("Q: 1", "0")]


def test_a_pattern_takes_parts_out_of_the_prompt_for_the_template(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, GOOD, prompt_pattern=r"(?P<a>\d)\+(?P<b>\d)", prompt_template="{b}-{a}: {answer}")
    assert load_problems(spec)[0].prompt == "1-1: 2"


def test_a_limit_takes_the_first_rows_and_reads_no_further(tmp_path: Path) -> None:
    assert len(load_problems(spec_of(tmp_path, GOOD, GOOD, "not json", limit=2))) == 2


@pytest.mark.parametrize(
    ("lines", "changes", "line", "named"),
    [
        ([GOOD, "", "{bad"], {}, 3, "is not JSON"),
        ([GOOD, "[1]"], {}, 2, "must be a JSON object, not list"),
        (['{"prompt": "1"}'], {}, 1, "no 'answer'; its keys: prompt"),
        (['{"prompt": "1", "answer": null}'], {}, 1, "no 'answer'"),
        (['{"q": "1", "answer": 1}'], {}, 1, "no text in 'prompt'"),
        (['{"prompt": 5, "answer": 1}'], {}, 1, "no text in 'prompt'"),
        ([GOOD], {"prompt_template": "{question}"}, 1, "KeyError"),
        ([GOOD], {"prompt_template": "{a}", "prompt_pattern": r"(?P<a>[a-z])"}, 1, "is not found in '1\\+1='"),
        ([GOOD], {"prompt_template": "{prompt"}, 1, "ValueError"),
        ([GOOD], {"prompt_template": "{}"}, 1, "IndexError"),
        ([GOOD], {"prompt_template": "{prompt.x}"}, 1, "AttributeError"),
        ([GOOD], {"prompt_template": "{prompt[x]}"}, 1, "TypeError"),
        (['{"id": 7, "prompt": "a", "answer": 1}', "", '{"id": "7", "prompt": "b", "answer": 1}'], {}, 3, "'7' is used twice"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_its_line(
    tmp_path: Path, lines: list[str], changes: dict[str, Any], line: int, named: str
) -> None:
    with pytest.raises(DatasetError, match=named) as caught:
        load_problems(spec_of(tmp_path, *lines, **changes))
    assert (caught.value.path, caught.value.line) == (str(tmp_path / "d.jsonl"), line)


def test_a_file_that_is_missing_empty_or_not_utf8_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere.jsonl: file does not exist"):
        load_problems(DatasetSpec(name="d", source=str(tmp_path / "nowhere.jsonl")))
    with pytest.raises(DatasetError, match="holds no rows"):
        load_problems(spec_of(tmp_path, "", " "))
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9", "answer": 1}\n')
    with pytest.raises(DatasetError, match="is not UTF-8"):
        load_problems(DatasetSpec(name="d", source=str(tmp_path / "latin")))


def test_lone_surrogates_and_nul_are_kept_exactly(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, r'{"prompt": "a\ud800\u0000", "answer": "\udfff"}')
    (problem,) = load_problems(spec)
    assert (problem.prompt, problem.answer) == ("a\ud800\0", "\udfff")
    assert suite_digest(Suite(name="s", datasets=(spec,)))


def test_the_same_seed_gives_the_same_problems_and_another_seed_others() -> None:
    assert load_problems(gym(seed=3)) == load_problems(gym(seed=3))
    assert [p.prompt for p in load_problems(gym(seed=3))] != [p.prompt for p in load_problems(gym(seed=4))]
    assert len(load_problems(gym(size=5).model_copy(update={"limit": 2}))) == 2


@pytest.mark.parametrize("bad", [gym(family="basic_arithmetik"), gym(min_trems=2), gym(min_terms=-5), gym(min_terms="many")])
def test_a_family_or_setting_of_reasoning_gym_that_does_not_exist_is_refused(bad: DatasetSpec) -> None:
    with pytest.raises(ConfigError, match="dataset g: reasoning-gym 'basic_arithmeti"):
        load_problems(bad)


def digest(folder: Path, *lines: str, **changes: Any) -> str:
    folder.mkdir(exist_ok=True)
    return suite_digest(Suite(name="s", datasets=(spec_of(folder, *lines, **changes),)))


def test_the_suite_digest_is_of_content_and_not_of_the_path(tmp_path: Path) -> None:
    assert digest(tmp_path / "a", GOOD) == digest(tmp_path / "b", GOOD)
    assert digest(tmp_path / "a", GOOD) == digest(tmp_path / "b", GOOD, "")


@pytest.mark.parametrize(
    ("lines", "changes"),
    [
        (['{"prompt": "1+2=", "answer": 2}'], {}),
        (['{"prompt": "1+1=", "answer": 3}'], {}),
        (['{"prompt": "1+1=", "answer": 2, "id": "x"}'], {}),
        ([GOOD, GOOD], {}),
        ([GOOD], {"sampling": Sampling(temperature=0.5)}),
        ([GOOD], {"grader": "numeric"}),
        ([GOOD], {"answer_pattern": "."}),
        ([GOOD], {"samples_per_prompt": 2}),
        ([GOOD], {"apply_chat_template": True}),
    ],
)
def test_the_suite_digest_changes_with_problems_sampling_and_grading(
    tmp_path: Path, lines: list[str], changes: dict[str, Any]
) -> None:
    assert digest(tmp_path / "a", *lines, **changes) != digest(tmp_path / "b", GOOD)


def test_a_row_without_an_id_has_its_number_among_the_rows_whatever_is_passed_over(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "", GOOD, "{bad", "", GOOD, on_bad_row="skip")
    assert [problem.id for problem in load_problems(spec)] == ["1", "3"]


def test_bad_rows_are_passed_over_and_named_with_file_and_line_if_the_dataset_says_so(tmp_path: Path) -> None:
    lines = [GOOD, "{bad", "", '{"prompt": "no answer"}', '{"prompt": "3+3=", "answer": 6, "id": "1"}', "[1]"]
    loaded = load_dataset(spec_of(tmp_path, *lines, on_bad_row="skip"))
    assert [problem.prompt for problem in loaded.problems] == ["1+1="]
    assert [(bad.path, bad.line) for bad in loaded.bad_rows] == [(str(tmp_path / "d.jsonl"), line) for line in (2, 4, 5, 6)]
    assert "is not JSON" in str(loaded.bad_rows[0])
    assert "'1' is used twice" in str(loaded.bad_rows[2])


def test_if_no_row_can_be_used_the_dataset_is_refused_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no rows that can be used, and 2 that can not"):
        load_problems(spec_of(tmp_path, "{", "[]", on_bad_row="skip"))


def test_a_limit_counts_what_can_be_used(tmp_path: Path) -> None:
    loaded = load_dataset(spec_of(tmp_path, "{bad", GOOD, GOOD, "{bad", on_bad_row="skip", limit=2))
    assert ([problem.id for problem in loaded.problems], len(loaded.bad_rows)) == (["2", "3"], 1)


def test_a_line_that_is_not_utf8_is_named_and_can_be_passed_over(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(GOOD.encode() + b'\n{"prompt": "\xe9", "answer": 1}\n')
    spec = DatasetSpec(name="d", source=str(tmp_path / "d.jsonl"), on_bad_row="skip")
    loaded = load_dataset(spec)
    assert (len(loaded.problems), [bad.line for bad in loaded.bad_rows]) == (1, [2])


def test_a_hundred_thousand_rows_are_never_in_memory_together(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "x" * 400, "answer": 1})
    (tmp_path / "d.jsonl").write_text(f"{row}\n" * 100_000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_problems(DatasetSpec(name="d", source=str(tmp_path / "d.jsonl"))))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 100_000
    assert peak < 20 * 2**20, "ids alone are kept, to find those that are used twice"


def test_the_answer_to_grade_against_can_be_a_part_of_the_rows(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "q", "answer": "6 times 7 is 42.\n#### 42"})
    assert load_problems(spec_of(tmp_path, row, answer_key_pattern=r"####\s*(.+)$"))[0].answer == "42"
    assert load_problems(spec_of(tmp_path, row, answer_key_pattern=r"\d+$"))[0].answer == "42"
    with pytest.raises(DatasetError, match=r"answer_key_pattern '@' is not found in"):
        load_problems(spec_of(tmp_path, row, answer_key_pattern="@"))


@pytest.mark.parametrize(
    ("answer", "grader", "text"),
    [
        ('["Paris"]', "exact", "Paris"),
        ("true", "exact", "true"),
        ("2.50", "exact", "2.5"),
        ('{"type": "object"}', "json_schema", '{"type": "object"}'),
        ('["a", "b"]', "instructions", '["a", "b"]'),
        ('["a", "b"]', {"name": "custom", "function": "builtins:float"}, '["a", "b"]'),
    ],
)
def test_an_answer_that_is_no_text_is_its_json(tmp_path: Path, answer: str, grader: Any, text: str) -> None:
    row = f'{{"prompt": "?", "answer": {answer}}}'
    assert load_problems(spec_of(tmp_path, row, grader=grader))[0].answer == text


def test_a_list_of_nothing_is_no_answer(tmp_path: Path) -> None:
    for answer in ("[null]", "[]"):
        with pytest.raises(DatasetError, match="line 1: has (no|0)"):
            load_problems(spec_of(tmp_path, f'{{"prompt": "?", "answer": {answer}}}'))
    row = '{"prompt": "?", "answer": ["A1", "B2"]}'
    assert load_problems(spec_of(tmp_path, row, answer_key_pattern=r"B\d"))[0].answer == "B2"


def test_several_right_answers_are_a_bad_row_and_not_a_text_that_is_never_right(tmp_path: Path) -> None:
    row = '{"prompt": "?", "answer": ["Paris", "City of Paris"]}'
    with pytest.raises(DatasetError, match=r"line 1: has 2 answers in 'answer', and a row can have one"):
        load_problems(spec_of(tmp_path, row))


CHOICES = {"prompt_template": "{q}\n{choices}", "choices": Choices(right="r", wrong=("w1", "w2", "w3"))}


def choosing(folder: Path, *numbers: int, **changes: Any) -> list[Problem]:
    rows = [json.dumps({"q": f"{n}?", "r": f"right {n}", "w1": "a", "w2": "b", "w3": "c"}) for n in numbers]
    return load_problems(spec_of(folder, *rows, **{**CHOICES, **changes}))


def test_choices_are_shuffled_and_the_answer_is_the_letter_of_the_right_one(tmp_path: Path) -> None:
    problems = choosing(tmp_path, *range(200))
    for number, problem in enumerate(problems):
        question, *lines = problem.prompt.splitlines()
        assert question == f"{number}?"
        assert sorted(line[3:] for line in lines) == ["a", "b", "c", f"right {number}"]
        assert f"{problem.answer}) right {number}" in lines
    counts = Counter(problem.answer for problem in problems)
    assert set(counts) == set("ABCD")
    assert min(counts.values()) > 25, "each place is about as likely"


def test_the_order_of_choices_is_of_the_row_and_the_seed_and_not_of_the_place(tmp_path: Path) -> None:
    there, elsewhere = choosing(tmp_path, 7, 8), choosing(tmp_path, 3, 8)
    assert there[1].prompt == elsewhere[1].prompt
    reseeded = choosing(tmp_path, *range(20), choices=Choices(right="r", wrong=("w1", "w2", "w3"), seed=1))
    assert [p.answer for p in reseeded] != [p.answer for p in choosing(tmp_path, *range(20))]


def test_a_row_without_one_of_its_choices_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="line 1: has no 'w1', a choice"):
        load_problems(spec_of(tmp_path, '{"q": "?", "r": "x"}', **CHOICES))


def chat(folder: Path, prompt: Any, **changes: Any) -> list[Problem]:
    row = json.dumps({"prompt": prompt, "answer": 2, "tools": [{"name": "f"}]})
    return load_problems(spec_of(folder, row, apply_chat_template=True, **changes))


def test_chat_messages_are_asked_as_they_are_and_read_as_a_text(tmp_path: Path) -> None:
    (one,) = chat(tmp_path, [{"role": "user", "content": "1+1="}])
    assert (one.prompt, one.messages, one.tools) == ("1+1=", ({"role": "user", "content": "1+1="},), ())
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": "assistant", "content": "?"}]
    (many,) = chat(tmp_path, [*messages, {"role": "user", "content": "1+1="}], tools_key="tools")
    assert many.prompt == str(many) == "user: hi\n\nassistant: ?\n\nuser: 1+1="
    assert many.tools == ({"name": "f"},)


@pytest.mark.parametrize(
    ("prompt", "changes", "named"),
    [
        ([{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], {}, "no message to answer"),
        ([], {}, "no chat messages"),
        (["hi"], {}, "a chat message without a role: 'hi'"),
        ([{"content": "hi"}], {}, "without a role"),
        ([{"role": "user"}], {}, "of role 'user' without content"),
        ([{"role": "user", "content": [{"type": "image", "image": "x.png"}]}], {}, "a part that is no text"),
        ([{"role": "user", "content": "hi"}], {"apply_chat_template": False}, "set apply_chat_template: true"),
        ("hi", {"tools_key": "answer"}, "no list of JSON schemas in 'answer'"),
    ],
)
def test_chat_that_cannot_be_asked_is_named_by_its_line(
    tmp_path: Path, prompt: Any, changes: dict[str, Any], named: str
) -> None:
    row = json.dumps({"prompt": prompt, "answer": 2})
    with pytest.raises(DatasetError, match=named) as caught:
        load_problems(spec_of(tmp_path, row, **{"apply_chat_template": True, **changes}))
    assert caught.value.line == 1


def test_samples_of_one_prompt_draw_with_seeds_of_their_own_that_repeat() -> None:
    sampling = Sampling(temperature=1.0, sampling_seed=7)
    seeds = [sampling.of_sample(problem, index).sampling_seed for problem in ("a", "b") for index in range(50)]
    assert len(set(seeds)) == 100
    assert seeds[0] == sampling.of_sample("a", 0).sampling_seed != Sampling(sampling_seed=8).of_sample("a", 0).sampling_seed
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    assert Sampling().of_sample("a", 1) == Sampling()

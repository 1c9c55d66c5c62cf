"""The suites that Pinpoint brings read the data that they say they do, and grade right answers right."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from infra.datasets import load_problems, read_problems
from infra.errors import ConfigError
from infra.grading.answers import extract
from infra.grading.work import grade
from infra.model import DatasetSpec, Problem
from infra.suite_files import load_suite
from infra.suites import ready_suite, ready_suites
from trainer_integration.tiny_trainer.model import CHARACTERS

MADE = {"arithmetic", "reasoning-gym"}
GSM8K = {"question": "6 bags of 200 balls?", "answer": "6 * 200 = <<6*200=1200>>1200\n#### 1,200"}
MATH = {"problem": "1/2 + {1}?", "answer": "\\frac{3}{2}", "unique_id": "u", "level": 1}
AIME = {"id": 60, "problem": "204?", "answer": "204", "year": "2024"}
GPQA = {"Question": "Why?", "Correct Answer": "So\n", "Incorrect Answer 1": "a", "Incorrect Answer 2": "b"}
IFEVAL = {"key": 1000, "prompt": "No commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With files as they are published, under the names that the suites look for."""
    for name, row in (("gsm8k", GSM8K), ("math-500", MATH), ("aime", AIME), ("ifeval", IFEVAL)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    with (tmp_path / "gpqa.csv").open("w", newline="") as text:
        csv.DictWriter(text, fields := [*GPQA, "Incorrect Answer 3"]).writeheader()
        csv.DictWriter(text, fields).writerow({**GPQA, "Incorrect Answer 3": "c"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def only(name: str) -> tuple[DatasetSpec, Problem]:
    (spec,) = load_suite(name).datasets
    (problem,) = load_problems(spec)
    return spec, problem


def test_each_has_the_name_of_its_file_and_is_a_suite(folder: Path) -> None:
    assert set(ready_suites()) == {*MADE, "gsm8k", "math-500", "aime", "gpqa", "ifeval"}
    assert [load_suite(name).name for name in ready_suites()] == ready_suites()


@pytest.mark.parametrize(
    ("name", "asked", "right", "wrong"),
    [
        ("gsm8k", "6 bags of 200 balls?\nThink", "So.\nThe answer is 1,200.", "The answer is 12."),
        ("gsm8k", "6 bags", "The answer is: **$1200.0**", "1200"),
        ("gsm8k", "6 bags", r"The final answer is \$1,200.", r"The answer is 1200; no, the answer is \$12."),
        ("gsm8k", "6 bags", r"The answer is $\boxed{1200}$.", r"The answer is $\boxed{12}$"),
        ("gsm8k", "6 bags", r"The answer is: \[\boxed{1200}\]", r"The answer is \text{12}"),
        ("gsm8k", "6 bags", "The answer is 12. No, the answer is `1200`.", 'The answer is 1200. No, the answer is "12".'),
        ("gsm8k", "6 bags", "The answer is _1200_", "The answer is €12"),
        ("math-500", "1/2 + {1}?\nThink step by step, and put the final answer into \\boxed{}.", r"\boxed{1.5}", r"\boxed{1}"),
        ("aime", "204?\nThink", r"So \boxed{204}", r"\boxed{24}"),
    ],
)
def test_a_template_asks_what_is_published_and_grades_it(folder: Path, name: str, asked: str, right: str, wrong: str) -> None:
    spec, problem = only(name)
    assert problem.prompt.startswith(asked)
    assert spec.apply_chat_template
    assert [grade(spec, problem, response).reward for response in (right, wrong)] == [1.0, 0.0]


def test_ifeval_brings_the_instructions_of_each_row_to_its_grader(folder: Path) -> None:
    spec, problem = only("ifeval")
    assert (spec.grader.name, problem.prompt, spec.apply_chat_template) == ("instructions", "No commas.", True)
    assert problem.entry["instruction_id_list"] == ["punctuation:no_comma"]


def test_gpqa_shuffles_its_choices_and_grades_the_letter(folder: Path) -> None:
    spec, problem = only("gpqa")
    assert f"\n{problem.answer}) So\n" in problem.prompt
    assert {line[0] for line in problem.prompt.splitlines() if line[1:2] == ")"} == set("ABCD")
    (other,) = sorted(set("AB") - {problem.answer})[:1]
    assert [grade(spec, problem, f"Hm.\nAnswer: {letter}").reward for letter in (problem.answer, other)] == [1.0, 0.0]


def test_a_template_without_its_data_says_where_it_looked_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_suite("gsm8k")
    assert f"file {tmp_path / 'gsm8k.jsonl'} does not exist; a ready suite looks for it in the current folder" in str(
        caught.value
    )
    assert "`pinpoint suite show gsm8k --yaml`" in str(caught.value)


def test_a_copy_of_a_template_can_be_pointed_elsewhere(tmp_path: Path, folder: Path) -> None:
    copy = tmp_path / "mine" / "suite.yaml"
    copy.parent.mkdir()
    file: Any = ready_suite("gsm8k")
    copy.write_text(file.read_text().replace("gsm8k.jsonl", str(folder / "gsm8k.jsonl")))
    assert load_suite(copy).datasets == load_suite("gsm8k").datasets


@pytest.mark.parametrize(
    "response",
    [
        "I must put it between <answer> and </answer>. 3+4=7 <answer>7</answer>",
        "<answer>5</answer> no, wait: <answer> 7 </answer>",
    ],
)
def test_of_several_answers_between_markers_the_last_is_meant(response: str) -> None:
    spec = load_suite("reasoning-gym").datasets[0]
    assert extract(spec, response) == "7"


@pytest.mark.parametrize("name", ["reasoning-gym", "gsm8k"])
def test_a_response_that_loops_is_read_at_once(folder: Path, name: str) -> None:
    """What reads it in more than linear time for each place where an answer may begin would not come to an end."""
    spec = load_suite(name).datasets[0]
    for looping in ("<answer> 7 ", "The answer is: ", "x"):
        assert extract(spec, looping * 2_000) is None


def test_arithmetic_is_of_characters_that_the_tiny_model_knows_and_its_answers_are_right() -> None:
    for spec in load_suite("arithmetic").datasets:
        problems = load_problems(spec.model_copy(update={"limit": 30}))
        assert {character for problem in problems for character in problem.prompt} <= set(CHARACTERS)
        for problem in problems:
            left, sign, right = (problem.prompt[a:b] for a, b in _parts(problem.prompt))
            value = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
            assert grade(spec, problem, str(value)).reward == 1.0
            assert grade(spec, problem, str(value + 1)).reward < 1.0


def _parts(prompt: str) -> list[tuple[int, int]]:
    place = next(place for place, character in enumerate(prompt) if character in "+-*")
    return [(0, place), (place, place + 1), (place + 1, len(prompt) - 1)]


def test_every_family_of_the_mix_makes_problems_whose_own_answer_is_right() -> None:
    for spec in load_suite("reasoning-gym").datasets:
        problem = next(read_problems(spec))
        response = f"<think>hm</think>I add.\n<answer>\n{problem.answer}\n</answer>"
        assert grade(spec, problem, response).reward == 1.0, spec.name

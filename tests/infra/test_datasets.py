"""A dataset is read whole and checked before anything is asked of an engine; a row that can't be used is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.datasets import load_problems, suite_digest
from infra.errors import ConfigError, DatasetError
from infra.model import DatasetSpec, ReasoningGymSource, Sampling, Suite
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

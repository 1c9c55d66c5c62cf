"""Functions and lm-eval tasks give rows like those of a file; what is not there, or can't be asked, is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.datasets import load_dataset, load_problems
from infra.errors import ConfigError, DatasetError
from infra.model import DatasetSpec, FunctionSource, LmEvalSource
from tests.infra.harness_tasks import write_choosing, write_generating, write_task

HERE = "tests.infra.user_functions"


def of_function(name: str, settings: dict[str, Any] | None = None, **changes: Any) -> DatasetSpec:
    return DatasetSpec(name="f", source=FunctionSource(function=f"{HERE}:{name}", settings=settings or {}), **changes)


def of_task(folder: Path, name: str, num_fewshot: int = 0, **changes: Any) -> DatasetSpec:
    source = LmEvalSource(lm_eval=name, include_path=str(folder), num_fewshot=num_fewshot)
    return DatasetSpec(name="t", source=source, **changes)


def test_a_function_gives_rows_as_it_makes_them_or_all_at_once() -> None:
    problems = load_problems(of_function("additions", {"count": 2, "offset": 10}))
    assert [(p.id, p.prompt, p.answer) for p in problems] == [("1", "10+1=", "11"), ("2", "11+1=", "12")]
    assert [p.id for p in load_problems(of_function("listed"))] == ["a"]


def test_a_limit_takes_no_more_of_a_function_than_it_needs() -> None:
    assert len(load_problems(of_function("broken_at_the_third", limit=2))) == 2
    with pytest.raises(DatasetError, match="broken_at_the_third, row 3: raised ZeroDivisionError: no third row"):
        load_problems(of_function("broken_at_the_third"))


def test_rows_of_a_function_that_cannot_be_used_are_counted_like_those_of_a_file() -> None:
    with pytest.raises(DatasetError, match="mixed, row 2: must be a JSON object, not str"):
        load_problems(of_function("mixed"))
    loaded = load_dataset(of_function("mixed", on_bad_row="skip"))
    assert (len(loaded.problems), [bad.line for bad in loaded.bad_rows]) == (1, [2, 3])


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("nothing", {}, "no attribute 'nothing'; it must be importable where flows run"),
        ("NOT_A_FUNCTION", {}, "can't be called: it is a int"),
        ("one_text", {}, "must give rows, one mapping each, not a str"),
        ("additions", {"cuont": 2}, "unexpected keyword argument 'cuont'"),
    ],
)
def test_a_function_that_gives_no_rows_is_refused(name: str, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_problems(of_function(name, settings))


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="dataset f: source no_such_module:rows: No module named 'no_such_module'"):
        load_problems(DatasetSpec(name="f", source=FunctionSource(function="no_such_module:rows")))


ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(6)]


def test_an_lm_eval_task_is_asked_as_it_makes_its_own_prompts(tmp_path: Path) -> None:
    write_task(
        tmp_path,
        "sums",
        ROWS,
        output_type="generate_until",
        doc_to_text="Q: {{prompt}}\nA:",
        doc_to_target="{{answer}}!",
        description="Add.\n",
        metric_list=[{"metric": "exact_match"}],
    )
    problems = load_problems(of_task(tmp_path, "sums", limit=2))
    assert [(p.id, p.prompt, p.answer) for p in problems] == [
        ("1", "Add.\nQ: 0+1=\nA:", "1!"),
        ("2", "Add.\nQ: 1+1=\nA:", "2!"),
    ]


def test_few_shot_examples_are_drawn_as_lm_eval_draws_them(tmp_path: Path) -> None:
    from lm_eval.tasks import TaskManager

    write_generating(tmp_path, "sums", ROWS)
    ours = load_problems(of_task(tmp_path, "sums", num_fewshot=2))
    task = TaskManager(include_path=str(tmp_path), include_defaults=False).load("sums")["tasks"]["sums"]
    task.set_config(key="num_fewshot", value=2)
    task.set_fewshot_seed(seed=1234)
    task.build_all_requests(rank=0, world_size=1)
    assert [p.prompt for p in ours] == [instance.args[0] for instance in task.instances]
    assert all(p.prompt.count("=") == 3 for p in ours)


def test_a_task_that_is_not_there_or_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    write_generating(tmp_path, "sums", ROWS)
    write_choosing(tmp_path, "choices", [{"question": "?", "choices": ["a", "b"], "gold": 1}])
    with pytest.raises(ConfigError, match="'choices' is of type multiple_choice, and only generate_until can be asked"):
        load_problems(of_task(tmp_path, "choices"))
    (tmp_path / "sums.jsonl").unlink()
    with pytest.raises(ConfigError, match="dataset t: lm-eval task 'sums' can't be read; only local data is"):
        load_problems(of_task(tmp_path, "sums"))


def test_a_row_with_several_right_answers_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": ["1"]}, {"prompt": "b", "answer": ["1", "2"]}]
    write_task(tmp_path, "many", rows, output_type="generate_until", doc_to_text="{{prompt}}", doc_to_target="answer")
    loaded = load_dataset(of_task(tmp_path, "many", on_bad_row="skip"))
    assert [p.answer for p in loaded.problems] == ["1"]
    assert "lm-eval many, row 2: has 2 right answers" in str(loaded.bad_rows[0])


def test_without_lm_eval_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"dataset t: source lm_eval needs lm-eval: pip install 'pinpoint-eval\[lm-eval\]'"):
        load_problems(of_task(tmp_path, "sums"))


@pytest.mark.slow
def test_a_name_that_lm_eval_does_not_know_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lm-eval knows no task 'gsm8kk': did you mean 'gsm8k'"):
        load_problems(of_task(tmp_path, "gsm8kk"))

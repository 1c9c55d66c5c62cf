"""A suite file says what to measure: unknown keys are refused at each level, and files must be there before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import ConfigError, UnknownKey
from infra.model import DatasetSpec, FunctionSource, LmEvalSource
from infra.suite_files import load_suite, suite_of


def suite_file(folder: Path, **content: Any) -> Path:
    (folder / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n')
    file = folder / "nightly.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_sources_are_taken_relative_to_the_file_and_its_name_is_the_default(tmp_path: Path) -> None:
    suite = load_suite(suite_file(tmp_path, datasets=[{"name": "sums", "source": "sums.jsonl"}]))
    assert suite.name == "nightly"
    assert suite.datasets[0].source == str(tmp_path / "sums.jsonl")


def test_defaults_are_merged_and_sampling_key_by_key(tmp_path: Path) -> None:
    suite = load_suite(
        suite_file(
            tmp_path,
            name="s",
            defaults={"source": "sums.jsonl", "samples_per_prompt": 4, "sampling": {"temperature": 0.7, "top_p": 0.9}},
            datasets=[{"name": "a"}, {"name": "b", "samples_per_prompt": 1, "sampling": {"temperature": 0.0}}],
        )
    )
    a, b = suite.datasets
    assert (a.samples_per_prompt, a.sampling.temperature, a.sampling.top_p) == (4, 0.7, 0.9)
    assert (b.samples_per_prompt, b.sampling.temperature, b.sampling.top_p) == (1, 0.0, 0.9)


GOOD = {"name": "sums", "source": "sums.jsonl"}
GYM = {"reasoning_gym": "basic_arithmetic"}


@pytest.mark.parametrize(
    ("content", "key", "nearest"),
    [
        ({"dataset": [GOOD]}, "dataset", "datasets"),
        ({"datasets": [{**GOOD, "sample_per_prompt": 2}]}, "sample_per_prompt", "samples_per_prompt"),
        ({"defaults": {"limt": 2}, "datasets": [GOOD]}, "limt", "limit"),
        ({"datasets": [{**GOOD, "sampling": {"temprature": 1}}]}, "temprature", "temperature"),
        ({"defaults": {"sampling": {"topp": 1}}, "datasets": [GOOD]}, "topp", "top_p"),
        ({"datasets": [{"name": "g", "source": {**GYM, "sede": 1}}]}, "sede", "seed"),
        ({"datasets": [{"name": "l", "source": {"lm_eval": "gsm8k", "num_fewshots": 1}}]}, "num_fewshots", "num_fewshot"),
        ({"datasets": [{"name": "f", "source": {"function": "m:f", "setings": {}}}]}, "setings", "settings"),
        ({"datasets": [{**GOOD, "prompt_template": "x", "choices": {"rigth": "a", "wrong": ["b"]}}]}, "rigth", "right"),
        ({"datasets": [{**GOOD, "sampling": {"stop_token_id": [1]}}]}, "stop_token_id", "stop_token_ids"),
        ({"datasets": [{**GOOD, "grader": {"name": "numeric", "reltol": 1}}]}, "reltol", "rel_tol"),
        ({"defaults": {"grader": {"name": "math", "digit": 1}}, "datasets": [GOOD]}, "digit", "digits"),
    ],
)
def test_an_unknown_key_is_refused_at_each_level(tmp_path: Path, content: dict[str, Any], key: str, nearest: str) -> None:
    with pytest.raises(UnknownKey, match=f"did you mean '{nearest}'") as caught:
        load_suite(suite_file(tmp_path, **content))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"datasets": [{"name": "x", "source": "missing.jsonl"}]}, "missing.jsonl does not exist"),
        ({"datasets": [{"name": "x", "source": "*.csv"}]}, "csv does not exist; 'source' is taken relative to the suite file"),
        ({"datasets": [{"name": "x", "source": {"reasoning_gim": "x"}}]}, "a mapping with reasoning_gym, lm_eval or function"),
        ({"datasets": [{"name": "x", "source": 5}]}, "a source is a file, or a mapping"),
        ({"datasets": [{"name": "x", "source": {"function": "f"}}]}, "source.FunctionSource.function"),
        ({"datasets": [{**GOOD, "on_bad_row": "ignore"}]}, "on_bad_row: Input should be 'fail' or 'skip'"),
        ({"datasets": [{**GOOD, "generate": "f"}]}, "generate"),
        ({"datasets": [{**GOOD, "choices": {"right": "a", "wrong": ["b"]}}]}, "choices needs a prompt_template"),
        ({"datasets": [{**GOOD, "system_prompt": "x"}]}, "system_prompt needs apply_chat_template: true"),
        ({"datasets": [{**GOOD, "tools_key": "x"}]}, "tools_key needs apply_chat_template: true"),
        ({"datasets": [{**GOOD, "chat_template_kwargs": {"x": 1}}]}, "chat_template_kwargs needs apply_chat_template: true"),
        ({"datasets": [{**GOOD, "answer_key_pattern": "("}]}, "not a regular expression"),
        ({"datasets": [{**GOOD, "sampling": {"sampling_seed": -1}}]}, "sampling.sampling_seed"),
        ({"datasets": [{"name": "x"}]}, "source"),
        ({"datasets": [{"source": "sums.jsonl"}]}, "name"),
        ({"datasets": ["sums.jsonl"]}, "must be a mapping"),
        ({"datasets": {"sums": GOOD}}, "'datasets' a list"),
        ({"datasets": []}, "datasets"),
        ({}, "'datasets' a list"),
        ({"defaults": [1], "datasets": [GOOD]}, "'defaults' must be a mapping"),
        ({"datasets": [{**GOOD, "limit": 0}]}, "limit"),
        ({"datasets": [{**GOOD, "samples_per_prompt": "few"}]}, "samples_per_prompt"),
        ({"datasets": [{**GOOD, "grader": "vibes"}]}, "no grader is named 'vibes': there are exact, numeric"),
        ({"datasets": [{**GOOD, "grader": "maths"}]}, "no grader is named 'maths': did you mean 'math'"),
        ({"datasets": [{**GOOD, "grader": {"rel_tol": 1}}]}, "no grader is named None"),
        ({"datasets": [{**GOOD, "grader": {"name": "numeric", "rel_tol": -1}}]}, "grader.numeric.rel_tol"),
        ({"datasets": [{**GOOD, "grader": {"name": "regex", "pattern": "("}}]}, "not a regular expression"),
        ({"datasets": [{**GOOD, "grader": {"name": "json_schema", "definition": {"type": "nothing"}}}]}, "not a JSON schema"),
        ({"datasets": [{**GOOD, "grader": {"name": "custom", "function": "f"}}]}, "grader.custom.function"),
        ({"datasets": [{**GOOD, "grader": "judge"}]}, "grader.judge.url"),
        ({"datasets": [{**GOOD, "max_failed_share": 2}]}, "max_failed_share"),
        ({"datasets": [{**GOOD, "think_markers": ["<think>", ""]}]}, "must be two different texts"),
        ({"datasets": [{**GOOD, "grader": "reasoning_gym"}]}, "needs a reasoning_gym source"),
        ({"datasets": [{**GOOD, "answer_pattern": "("}]}, "not a regular expression"),
        ({"datasets": [{**GOOD, "name": "a b"}]}, "name"),
        ({"datasets": [{**GOOD, "sampling": "greedy"}]}, "sampling"),
        ({"defaults": {"sampling": [1]}, "datasets": [GOOD]}, "sampling"),
        ({"datasets": [{**GOOD, "sampling": {"top_p": 0}}]}, "sampling.top_p"),
        ({"datasets": [GOOD, GOOD]}, "used twice: sums"),
        ({"datasets": [{**GOOD, "name": "step"}]}, "eval/step of every point already: call the dataset something else"),
        ({"name": "my suite", "datasets": [GOOD]}, "name"),
    ],
)
def test_what_cannot_be_meant_is_named_in_one_line(tmp_path: Path, content: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        load_suite(suite_file(tmp_path, **content))
    assert "\n" not in str(caught.value)
    assert "nightly.yaml" in str(caught.value)


def test_a_pattern_an_object_and_a_folder_of_tasks_are_sources_too(tmp_path: Path) -> None:
    sources = ["*.jsonl", "s3://bucket/d.jsonl", {"lm_eval": "x", "include_path": "tasks"}, {"function": "m:f"}]
    entries = [{"name": f"d{n}", "source": source} for n, source in enumerate(sources)]
    files, remote, task, function = (d.source for d in load_suite(suite_file(tmp_path, datasets=entries)).datasets)
    assert (files, remote) == (str(tmp_path / "*.jsonl"), "s3://bucket/d.jsonl")
    assert task == LmEvalSource(lm_eval="x", include_path=str(tmp_path / "tasks"))
    assert function == FunctionSource(function="m:f")


def test_a_suite_can_be_a_list_in_code(tmp_path: Path) -> None:
    file = suite_file(tmp_path, defaults={"limit": 3}, datasets=[GOOD])
    listed = suite_of([GOOD], name="nightly", defaults={"limit": 3}, folder=tmp_path)
    assert listed == load_suite(file)
    assert suite_of([DatasetSpec(name="sums", source="sums.jsonl", limit=3)], name="nightly", folder=tmp_path) == listed
    with pytest.raises(UnknownKey, match="did you mean 'limit'"):
        suite_of([{**GOOD, "limt": 1}], name="x", folder=tmp_path)
    with pytest.raises(ConfigError, match="suite: 'datasets' is empty"):
        suite_of([], name="x")


def test_the_layout_of_miles_is_read_as_well(tmp_path: Path) -> None:
    data = {"name": "sums", "path": str(tmp_path / "sums.jsonl"), "rm_type": "numeric", "stop_token_ids": [3]}
    suite = load_suite(suite_file(tmp_path, eval={"defaults": {"temperature": 0.5}, "datasets": [data]}))
    assert (suite.name, suite.datasets[0].grader.name, suite.datasets[0].source) == ("nightly", "numeric", data["path"])
    assert (suite.datasets[0].sampling.temperature, suite.datasets[0].sampling.stop_token_ids) == (0.5, (3,))


def test_a_suite_that_is_neither_a_file_nor_ready_is_refused_with_the_ready_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"arithmetik does not exist, and no ready suite has this name: aime, arithmetic"):
        load_suite("arithmetik")


def test_a_file_is_preferred_to_a_ready_suite_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite_file(tmp_path, datasets=[GOOD]).rename(tmp_path / "arithmetic")
    monkeypatch.chdir(tmp_path)
    assert [dataset.name for dataset in load_suite("arithmetic").datasets] == ["sums"]

"""Evaluation data as Miles users write it becomes a suite, and what can't be meant is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import ConfigError, UnknownKey
from infra.miles_suite import read_eval_config, suite_of_pairs
from tests.infra.examples import jsonl

FLAGS = {"rm_type": "exact", "temperature": 1.0, "top_p": 0.7, "n_samples_per_eval_prompt": 1, "input_key": None}


@pytest.fixture
def data(tmp_path: Path) -> str:
    return jsonl(tmp_path / "d.jsonl", '{"question": "1+1=", "answer": "2"}')


def config(tmp_path: Path, data: str, entry: dict[str, Any], defaults: dict[str, Any] | None = None) -> Path:
    body = {"defaults": defaults or {}, "datasets": [{"name": "sums", "path": data, **entry}]}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump({"eval": body}))
    return tmp_path / "e.yaml"


def test_a_dataset_beats_the_defaults_which_beat_the_flags(tmp_path: Path, data: str) -> None:
    entry = {"temperature": 0.2, "rm_type": "numeric", "input_key": "question", "label_key": "answer"}
    path = config(tmp_path, data, entry, {"temperature": 0.5, "top_k": 20, "max_response_len": 64})
    (dataset,) = read_eval_config(path, FLAGS).datasets
    sampling = dataset.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_new_tokens) == (0.2, 20, 0.7, 64)
    assert (dataset.grader.name, dataset.prompt_key, dataset.answer_key) == ("numeric", "question", "answer")
    assert dataset.source == data


def test_pairs_take_all_else_from_the_flags(data: str) -> None:
    suite = suite_of_pairs(["a", data, "b", data], FLAGS)
    assert [dataset.name for dataset in suite.datasets] == ["a", "b"]
    assert {dataset.sampling.top_p for dataset in suite.datasets} == {0.7}
    with pytest.raises(ConfigError, match="got 1 words: a"):
        suite_of_pairs(["a"], FLAGS)


@pytest.mark.parametrize("place", ["entry", "defaults"])
def test_an_unknown_key_is_refused_with_the_nearest_right_one(tmp_path: Path, data: str, place: str) -> None:
    entry, defaults = ({"temperatur": 1}, {}) if place == "entry" else ({}, {"temperatur": 1})
    with pytest.raises(UnknownKey, match="did you mean 'temperature'"):
        read_eval_config(config(tmp_path, data, entry, defaults), FLAGS)


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("custom_rm_path", "grader: {name: custom, function: module:function}"),
        ("custom_generate_function_path", "generate: module:function"),
        ("metadata_key", "it knows name, path"),
    ],
)
def test_what_miles_has_and_pinpoint_has_not_is_refused_by_name_with_what_there_is(
    tmp_path: Path, data: str, key: str, instead: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key} is Miles' own.*{instead}"):
        read_eval_config(config(tmp_path, data, {key: "m.f"}), FLAGS)


def test_a_path_may_be_a_pattern_or_an_object_store(tmp_path: Path, data: str) -> None:
    pattern, remote = str(tmp_path / "*.jsonl"), "s3://bucket/d.jsonl"
    assert [dataset.source for dataset in suite_of_pairs(["a", pattern, "b", remote], FLAGS).datasets] == [pattern, remote]
    with pytest.raises(ConfigError, match="does not exist"):
        suite_of_pairs(["a", str(tmp_path / "*.csv")], FLAGS)


@pytest.mark.parametrize(
    ("rm_type", "grader"), [("math", "math"), ("f1", "f1"), ("gpqa", "multiple_choice"), ("normalised", "normalised")]
)
def test_what_miles_grades_in_a_way_that_there_is_here_is_graded_so(data: str, rm_type: str, grader: str) -> None:
    (dataset,) = suite_of_pairs(["a", data], {"rm_type": rm_type}).datasets
    assert dataset.grader.name == grader


@pytest.mark.parametrize("rm_type", ["remote_rm", "judge", "custom", "reasoning_gym"])
def test_a_grader_that_needs_more_than_a_name_is_none_of_those_that_miles_can_name(data: str, rm_type: str) -> None:
    with pytest.raises(ConfigError, match=f"rm_type '{rm_type}' is not a grader here"):
        suite_of_pairs(["a", data], {"rm_type": rm_type})


@pytest.mark.parametrize(("flags", "said"), [({"rm_type": "deepscaler"}, "'deepscaler' is not a grader"), ({}, "is not set")])
def test_a_grader_that_there_is_not_is_refused_with_those_that_there_are(
    tmp_path: Path, data: str, flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"dataset 'sums': rm_type {said}.*: use one of exact, numeric, contains"):
        read_eval_config(config(tmp_path, data, {}), flags)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eval: []", "'eval' must be a mapping"),
        ("evil: {}", "did you mean 'eval'"),
        ("eval: {datasets: []}", "a list of at least one mapping"),
        ("eval: {datasets: [x]}", "must be a mapping, not 'x'"),
        ("eval: {defaults: 1, datasets: [{}]}", "'defaults' must be a mapping"),
        ("eval: {datasets: [{name: a, path: gone.jsonl, rm_type: exact}]}", "gone.jsonl does not exist"),
        ("eval: {datasets: [{name: a b, path: x, rm_type: exact}]}", "dataset 'a b': name"),
    ],
)
def test_a_file_that_is_not_of_this_form_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "e.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_eval_config(tmp_path / "e.yaml", FLAGS)

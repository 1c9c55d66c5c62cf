"""What is asked of lm-eval is understood whole or refused by name, before an engine is started for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from infra.black_boxes.external_sglang import ExternalSGLang
from infra.black_boxes.generation_kwargs import sampling_of
from infra.black_boxes.lm_eval_harness import LmEvalHarness, metrics_of
from infra.errors import ConfigError, UnknownKey
from infra.model import Sampling

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("evaluation", [LmEvalHarness, ExternalSGLang])
@pytest.mark.parametrize(("wrong", "right"), [("sample_dir", "samples_dir"), ("urls", "url"), ("engine_arg", "engine_args")])
def test_an_unknown_setting_is_refused_with_the_nearest_right_one(evaluation: Any, wrong: str, right: str) -> None:
    with pytest.raises(UnknownKey, match=f"unknown key '{wrong}' in settings of {evaluation.__name__}: did you mean '{right}'"):
        evaluation({wrong: 1})


@pytest.mark.parametrize("evaluation", [LmEvalHarness, ExternalSGLang])
def test_who_attaches_to_a_server_does_not_launch_one(evaluation: Any) -> None:
    with pytest.raises(ConfigError, match=f"{evaluation.__name__} attaches to {URL}, so engine has no effect"):
        evaluation({"url": URL, "engine": "sglang"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "tasks: Field required"),
        ({"tasks": []}, "tasks: Tuple should have at least 1 item"),
        ({"tasks": "sums", "num_fewshot": -1}, "num_fewshot: Input should be greater than or equal to 0"),
        ({"tasks": "sums", "include_path": "/no/such"}, "include_path /no/such is no folder"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LmEvalHarness({"url": URL, **settings})


def test_without_lm_eval_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ConfigError, match=r"pip install 'pinpoint-eval\[lm-eval\]'"):
        LmEvalHarness({"url": URL, "tasks": "sums", "include_path": str(tmp_path)})


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({}, Sampling(max_new_tokens=256)),
        ({"until": "\n", "max_gen_toks": 5}, Sampling(stop=("\n",), max_new_tokens=5)),
        ({"until": ["", "Q:"], "max_tokens": 6, "max_gen_toks": None}, Sampling(stop=("Q:",), max_new_tokens=6)),
        ({"do_sample": False, "temperature": 0.7, "top_p": 0.5}, Sampling()),
        ({"temperature": 0.7, "top_p": 0.5, "top_k": 3}, Sampling(temperature=0.7, top_p=0.5, top_k=3)),
        ({"do_sample": True}, Sampling(temperature=1.0)),
    ],
)
def test_generation_kwargs_mean_what_they_mean_to_lm_eval(asked: dict[str, Any], meant: Sampling) -> None:
    assert sampling_of(asked) == meant


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_beams": 4}, "unknown key 'num_beams'"),
        ({"temperature": 1, "top_p": 2}, "top_p"),
        ({"max_gen_toks": 0}, "max_new"),
    ],
)
def test_generation_kwargs_that_the_engines_would_not_be_told_of_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sampling_of(asked)


def test_every_metric_has_its_task_and_its_filter_in_its_name() -> None:
    one: dict[str, Any] = {"alias": "one", "sample_len": 3, "acc,none": 0.5, "acc_stderr,none": 0.1}
    two: dict[str, Any] = {"exact_match,strict": 0.2, "exact_match_stderr,strict": "N/A", "exact_match,loose": 0.4}
    assert metrics_of({"results": {"one": one, "two": {**two, "exact_match_stderr,loose": float("nan")}}}) == {
        "one/acc": 0.5,
        "one/acc_stderr": 0.1,
        "two/exact_match/strict": 0.2,
        "two/exact_match/loose": 0.4,
    }

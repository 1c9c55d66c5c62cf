"""Evaluation is asked for on a trainer's command line by the flags that Miles users know.

    parser = argparse.ArgumentParser()
    add_eval_arguments(parser)
    options = EvalOptions.from_namespace(parse_arguments(parser))

Engine arguments (`--eval-sglang-*`) are taken by their prefix and typed by YAML, so that any SGLang's are, and none has to be
installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from trainer_integration.eval_options import EvalOptions

__all__ = ["EvalOptions", "add_eval_arguments", "parse_arguments"]
ENGINE, NOT_ENGINE = "--eval-sglang-", "--no-eval-sglang-"
WORDS: dict[str, dict[str, Any]] = {
    "eval_interval": {"type": int, "metavar": "STEPS"},
    "eval_prompt_data": {"nargs": "+", "metavar": ("NAME PATH", "NAME PATH")},
    "eval_config": {"metavar": "FILE"},
    "rm_type": {"metavar": "GRADER"},
    "input_key": {"metavar": "KEY"},
    "label_key": {"metavar": "KEY"},
    "apply_chat_template": {"action": "store_const", "const": True},
    "n_samples_per_eval_prompt": {"type": int, "metavar": "N"},
    "eval_max_response_len": {"type": int, "metavar": "TOKENS"},
    "eval_temperature": {"type": float, "metavar": "T"},
    "eval_top_p": {"type": float, "metavar": "P"},
    "eval_top_k": {"type": int, "metavar": "K"},
    "eval_num_gpus": {"type": int, "metavar": "N"},
    "eval_num_gpus_per_engine": {"type": int, "metavar": "N"},
    "eval_hf_dir": {"metavar": "FOLDER"},
    "save_hf": {"metavar": "PATTERN"},
    "save_interval": {"type": int, "metavar": "STEPS"},
    "eval_max_in_flight": {"type": int, "metavar": "N"},
    "eval_overflow_policy": {"metavar": "backpressure|skip"},
    "eval_keep_snapshots": {"type": int, "metavar": "N"},
    "eval_function_path": {"metavar": "MODULE.CLASS"},
    "eval_function_settings": {"type": yaml.safe_load, "metavar": "YAML"},
    "skip_eval_before_train": {"action": "store_const", "const": True},
    "hf_checkpoint": {"metavar": "FOLDER"},
    "eval_run": {"metavar": "NAME"},
}


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those that the parser does not have. Unset ones are None: a variable, a file or the default may say them."""
    group = parser.add_argument_group("evaluation")
    known = parser._option_string_actions
    for name, words in WORDS.items():
        flag = f"--{name.replace('_', '-')}"
        if flag not in known:
            text = (EvalOptions.model_fields[name].description or "").replace("%", "%%")
            group.add_argument(flag, dest=name, default=None, help=text, **words)
    if "--eval-settings" not in known:
        group.add_argument("--eval-settings", default=None, metavar="FILE", help="YAML file with these options by their names")


def parse_arguments(parser: argparse.ArgumentParser, words: Sequence[str] | None = None) -> argparse.Namespace:
    """As `parser.parse_args`, with `--eval-sglang-*` of any name beside what the parser knows."""
    ours, others = _split(list(sys.argv[1:] if words is None else words))
    args = parser.parse_args(others)
    args.eval_sglang = {**(getattr(args, "eval_sglang", None) or {}), **dict(_engine_arguments(ours))}
    return args


def _split(words: list[str]) -> tuple[list[list[str]], list[str]]:
    """Engine arguments, each with its values, and all other words. A value begins with no dash, or is a number."""
    ours: list[list[str]] = []
    others: list[str] = []
    current: list[str] | None = None
    for word in words:
        if word.startswith((ENGINE, NOT_ENGINE)):
            current = [word]
            ours.append(current)
        elif current is not None and not _is_flag(word):
            current.append(word)
        else:
            current = None
            others.append(word)
    return ours, others


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-").replace(".", "", 1).isdigit()


def _engine_arguments(given: Sequence[list[str]]) -> Iterator[tuple[str, Any]]:
    for flag, *values in given:
        flag, equals, value = flag.partition("=")
        typed = [_typed(word) for word in ([value] if equals else []) + values]
        name = flag.removeprefix(NOT_ENGINE).removeprefix(ENGINE).replace("-", "_")
        if flag.startswith(NOT_ENGINE):
            yield name, False
        else:
            yield name, typed if len(typed) > 1 else typed[0] if typed else True


def _typed(word: str) -> Any:
    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        return word

"""Evaluation data as Miles users write it becomes a suite: `name path` pairs, or the YAML of `--eval-config`.

A dataset's own value beats the file's defaults, which beat what the flags say. A key that nobody knows is refused with the
nearest right one, and what Miles has and Pinpoint does not by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from infra.config import parse, read_mapping
from infra.errors import ConfigError, UnknownKey
from infra.model import DatasetSpec, Suite
from infra.model.graders import SETTINGS, ReasoningGymGrader

# A name is all that Miles says of a grader: one that needs settings, or a source that Miles does not have, is not among them.
_ALONE = [kind for kind in SETTINGS if not any(field.is_required() for field in kind.model_fields.values())]
_NAMES = [kind.model_fields["name"].default for kind in _ALONE if kind is not ReasoningGymGrader]
GRADERS = {**{name: name for name in _NAMES}, "gpqa": "multiple_choice"}  # Miles' `math` and `f1` have the same names here
FIELDS = {  # Miles' key, and the field of DatasetSpec
    "name": "name",
    "path": "source",
    "rm_type": "grader",
    "input_key": "prompt_key",
    "label_key": "answer_key",
    "apply_chat_template": "apply_chat_template",
    "n_samples_per_eval_prompt": "samples_per_prompt",
    "tool_key": "tools_key",
}
SAMPLING = {  # and the field of its Sampling
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "max_response_len": "max_new_tokens",
}
KNOWN = (*FIELDS, *SAMPLING)
_GRADER = "a function is a grader in a suite of Pinpoint's own: `grader: {name: custom, function: module:function}`"
_REMEDIES = {  # for what Miles has and Pinpoint has otherwise, whose functions are called in another way
    "custom_rm_path": _GRADER,
    "custom_generate_function_path": "a suite of Pinpoint's own has `generate: module:function`",
    "reward_key": f"{_GRADER}, with its `reward_key`",
    "eval_reward_key": f"{_GRADER}, with its `reward_key`",
}
LACKING = (*_REMEDIES, "metadata_key", "metadata_overrides", "min_new_tokens", "no_stop_trim")


def read_eval_config(path: str | Path, flags: Mapping[str, Any], *, name: str = "eval") -> Suite:
    """Reads `eval: {defaults, datasets}`; files are relative to the folder of the process, as Miles has it, or absolute.

    `flags` has values by Miles' keys of a dataset; None says nothing. Raises UnknownKey, ConfigError.
    """
    raw = read_mapping(Path(path))
    _refuse(raw, ("eval",), str(path))
    body = raw.get("eval")
    if not isinstance(body, dict):
        raise ConfigError(f"{path}: 'eval' must be a mapping with 'defaults' and 'datasets'")
    _refuse(body, ("defaults", "datasets"), f"{path}, eval")
    defaults, datasets = body.get("defaults") or {}, body.get("datasets")
    if not isinstance(defaults, dict) or not isinstance(datasets, list) or not datasets:
        raise ConfigError(f"{path}: 'defaults' must be a mapping and 'datasets' a list of at least one mapping")
    _refuse(defaults, KNOWN, f"{path}, defaults")
    return _suite(name, [{**flags, **defaults, **_entry(path, entry)} for entry in datasets], str(path))


def suite_of_pairs(words: Sequence[str], flags: Mapping[str, Any], *, name: str = "eval") -> Suite:
    """Of `name path name path ...`. Raises ConfigError."""
    where = "--eval-prompt-data"
    if not words or len(words) % 2:
        raise ConfigError(f"{where} takes pairs of a name and a path, and got {len(words)} words: {' '.join(words)}")
    pairs = zip(words[::2], words[1::2], strict=True)
    return _suite(name, [{**flags, "name": each, "path": path} for each, path in pairs], where)


def _entry(path: str | Path, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ConfigError(f"{path}: each entry of 'datasets' must be a mapping, not {entry!r:.80}")
    _refuse(entry, KNOWN, f"{path}, dataset {entry.get('name', '?')!r}")
    return entry


def _suite(name: str, entries: Sequence[Mapping[str, Any]], where: str) -> Suite:
    return parse(Suite, {"name": name, "datasets": [_dataset(entry, where) for entry in entries]}, where=where)


def _dataset(entry: Mapping[str, Any], where: str) -> DatasetSpec:
    where = f"{where}, dataset {entry.get('name', '?')!r}"
    given = {key: value for key, value in entry.items() if value is not None}
    if given.get("rm_type") not in GRADERS:
        said = f"rm_type {given['rm_type']!r} is not a grader here" if "rm_type" in given else "rm_type is not set"
        raise ConfigError(f"{where}: {said}: use one of {', '.join(GRADERS)}")
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    given["rm_type"] = GRADERS[given["rm_type"]]
    values = {FIELDS[key]: value for key, value in given.items() if key in FIELDS}
    values["sampling"] = {SAMPLING[key]: value for key, value in given.items() if key in SAMPLING}
    spec = parse(DatasetSpec, values, where=where)
    if "://" in str(spec.source):
        return spec
    source = Path(str(spec.source)).expanduser().absolute()
    if not source.is_file() and not glob(str(source).replace("[", "[[]"), recursive=True):
        raise ConfigError(f"{where}: file {source} does not exist")
    return spec.model_copy(update={"source": str(source)})


def _refuse(mapping: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in mapping:
        if key in LACKING and known is KNOWN:
            instead = f"{_REMEDIES[key]}, see docs/suites.md" if key in _REMEDIES else f"it knows {', '.join(KNOWN)}"
            raise ConfigError(f"{where}: {key} is Miles' own, and Pinpoint does not have it; {instead}")
        if key not in known:
            raise UnknownKey(str(key), where=where, known=known)

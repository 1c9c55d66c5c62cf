"""A suite's digest changes with whatever can change a score, and not with where its data lies or in which format."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.datasets import suite_digest
from infra.datasets.digest import WHERE
from infra.errors import ConfigError
from infra.model import Choices, DatasetSpec, FunctionSource, LmEvalSource, ReasoningGymSource, Sampling, Suite
from tests.infra.examples import jsonl
from tests.infra.harness_tasks import write_generating
from tests.infra.test_dataset_files import as_array, as_arrow_stream, as_csv, as_lines, as_parquet

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(3)]
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
TABLE = st.lists(st.fixed_dictionaries({"prompt": TEXT, "answer": TEXT, "note": TEXT}), min_size=1, max_size=5)
VALUE = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | TEXT


def digest(source: Any, **changes: Any) -> str:
    return suite_digest(Suite(name="s", datasets=(DatasetSpec(name="d", source=source, **changes),)))


@settings(max_examples=60, deadline=None)
@given(rows=TABLE)
def test_the_format_of_a_table_of_texts_does_not_count(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("formats")
    writers = {"d.jsonl": as_lines, "d.json": as_array, "d.csv": as_csv, "d.parquet": as_parquet, "d.arrow": as_arrow_stream}
    for name, write in writers.items():
        write(folder / name, rows)
    assert len({digest(str(folder / name)) for name in writers}) == 1


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.dictionaries(TEXT, VALUE | st.lists(VALUE) | st.dictionaries(TEXT, VALUE)), min_size=1, max_size=4))
def test_an_array_of_rows_is_the_same_as_a_line_each(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("formats")
    asked = [{**row, "id": n, "prompt": "q", "answer": 1} for n, row in enumerate(rows)]
    as_lines(folder / "d.jsonl", asked)
    as_array(folder / "d.json", asked)
    assert digest(str(folder / "d.jsonl")) == digest(str(folder / "d.json"))


def test_the_order_of_keys_and_keys_without_a_value_do_not_count(tmp_path: Path) -> None:
    one = digest(jsonl(tmp_path / "a", '{"prompt": "1+1=", "answer": 2, "x": {"a": 1, "b": null}}'))
    assert one == digest(jsonl(tmp_path / "b", '{"answer": 2, "y": null, "x": {"a": 1}, "prompt": "1+1="}'))


def test_how_fast_and_with_whose_key_a_dataset_is_measured_does_not_count(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a", '{"prompt": "1+1=", "answer": 2}')
    judge = {"name": "judge", "url": "http://judge/v1", "model": "m"}
    one = digest(source, grader=judge)
    assert one == digest(source, grader={**judge, "concurrency": 2, "api_key_variable": "KEY"}, request_deadline_s=7)
    assert one != digest(source, grader={**judge, "model": "n"})


def test_what_a_grader_may_read_in_a_row_counts(tmp_path: Path) -> None:
    """A row's instructions decide its grade, whatever its prompt and answer are."""
    rows = [json.dumps({"prompt": "p", "answer": "a", "instruction_id_list": [name]}) for name in ("x", "y")]
    assert digest(jsonl(tmp_path / "a", rows[0])) != digest(jsonl(tmp_path / "b", rows[1]))


def test_files_functions_and_tasks_with_the_same_rows_are_the_same(tmp_path: Path) -> None:
    from_function = FunctionSource(function="tests.infra.user_functions:additions", settings={"count": 3})
    rows = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(3)]
    as_lines(tmp_path / "d.jsonl", rows)
    assert digest(from_function) == digest(str(tmp_path / "d.jsonl"))
    assert digest(FunctionSource(function=from_function.function, settings={"count": 4})) != digest(from_function)
    write_generating(tmp_path / "task", "sums", ROWS)
    as_lines(tmp_path / "texts.jsonl", ROWS)
    assert digest(LmEvalSource(lm_eval="sums", include_path=str(tmp_path / "task"))) == digest(str(tmp_path / "texts.jsonl"))


def test_where_the_data_lies_and_what_became_of_no_bad_row_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    as_lines(tmp_path / "d.jsonl", ROWS)
    as_lines(tmp_path / "elsewhere" / "e.jsonl", ROWS)
    reference = digest(str(tmp_path / "d.jsonl"))
    assert reference == digest(str(tmp_path / "elsewhere" / "*.jsonl"))
    assert reference == digest(str(tmp_path / "d.jsonl"), on_bad_row="skip")


CHANGES: dict[str, dict[str, Any]] = {
    "prompt_key": {"prompt_key": "q"},
    "answer_key": {"answer_key": "b"},
    "answer_key_pattern": {"answer_key_pattern": r"\d"},
    "choices": {"choices": Choices(right="b", wrong=("q",)), "prompt_template": "{q}"},
    "prompt_pattern": {"prompt_pattern": "(?P<x>1)", "prompt_template": "{prompt}"},
    "prompt_template": {"prompt_template": "{prompt}"},
    "apply_chat_template": {"apply_chat_template": True},
    "chat_template_kwargs": {"apply_chat_template": True, "chat_template_kwargs": {"enable_thinking": False}},
    "system_prompt": {"apply_chat_template": True, "system_prompt": "Be brief."},
    "tools_key": {"apply_chat_template": True, "tools_key": "tools"},
    "generate": {"generate": "tests.infra.user_functions:additions"},
    "answer_pattern": {"answer_pattern": "."},
    "think_markers": {"think_markers": None},
    "stop_in_thinking": {"stop_in_thinking": True},
    "grader": {"grader": "numeric"},
    "max_failed_share": {"max_failed_share": 0.5},
    "samples_per_prompt": {"samples_per_prompt": 2},
    "limit": {"limit": 1},
    "sampling": {"sampling": Sampling(stop_token_ids=(3,))},
}
SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.5,
    "max_new_tokens": 5,
    "stop": ["x"],
    "stop_token_ids": [5],
    "sampling_seed": 5,
}


@pytest.mark.parametrize("field", sorted(DatasetSpec.model_fields.keys() - {"name", "source", "request_deadline_s", *WHERE}))
def test_every_field_that_says_how_a_dataset_is_asked_or_graded_counts(tmp_path: Path, field: str) -> None:
    """A field that is added must be here, or among those that say where the data is."""
    source = jsonl(tmp_path / "d", *(json.dumps({"prompt": f"{n}1", "answer": n, "q": f"{n}1", "b": n}) for n in range(3)))
    before = {key: value for key, value in CHANGES[field].items() if key != field}
    assert digest(source, **CHANGES[field]) != digest(source, **before)


@pytest.mark.parametrize("field", sorted(Sampling.model_fields))
def test_every_field_of_sampling_counts(tmp_path: Path, field: str) -> None:
    source = jsonl(tmp_path / "d", json.dumps(ROWS[0]))
    assert digest(source, sampling={field: SAMPLING[field]}) != digest(source)


def test_the_family_that_scores_counts_even_if_its_problems_are_the_same() -> None:
    gym = {"size": 2, "config": {"min_terms": 2, "max_terms": 2}}
    one = digest(ReasoningGymSource(reasoning_gym="basic_arithmetic", **gym), grader="reasoning_gym")
    assert one == digest(ReasoningGymSource(reasoning_gym="basic_arithmetic", **gym), grader="reasoning_gym")
    assert one != digest(ReasoningGymSource(reasoning_gym="basic_arithmetic", seed=1, **gym), grader="reasoning_gym")


def test_what_a_module_that_generates_says_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = jsonl(tmp_path / "d", json.dumps(ROWS[0]))
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_turns.py"
    found = []
    for version in (1, 2):
        module.write_text(f"async def ask(engine): ...  # {version}\n")
        importlib.invalidate_caches()
        found.append(digest(source, generate="own_turns:ask"))
    assert found[0] != found[1]
    assert "own_turns" not in sys.modules, "its code is read and not run"
    with pytest.raises(ConfigError, match="generate nowhere:ask: there is no module nowhere"):
        digest(source, generate="nowhere:ask")

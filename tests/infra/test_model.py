"""Each concept has exactly one class, none can be changed once made, and the illegal can't be said."""

from __future__ import annotations

import ast
import random
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import infra.model
from infra.errors import ConfigError, PinViolation
from infra.model import (
    Comparison,
    DatasetSpec,
    Estimate,
    EvalPoint,
    EvalRequest,
    FleetSpec,
    Lengths,
    PairedDifference,
    PinnedFleet,
    PointRecord,
    ReasoningGymSource,
    Suite,
    WeightVersion,
)
from tests.infra.examples import POINT, REPORT, SKIPPED, SNAPSHOT, TOKEN, dataset, lease, proof, request


@pytest.mark.parametrize("run", ["", ".hidden", "a/b", "../up", "a b", "ü", "a" * 101, "a\n"])
def test_a_run_name_that_is_no_plain_folder_name_is_refused(run: str) -> None:
    with pytest.raises(ConfigError, match="run name"):
        EvalPoint(run=run, step=0)


@pytest.mark.parametrize("run", ["a", "Qwen3-0.6B_grpo.v2", "a" * 100])
def test_a_plain_run_name_is_taken(run: str) -> None:
    assert EvalPoint(run=run, step=0).run == run


@pytest.mark.parametrize(("step", "attempt"), [(-1, 0), (0, -1)])
def test_negative_steps_and_attempts_are_refused(step: int, attempt: int) -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        EvalPoint(run="r", step=step, attempt=attempt)


@given(st.lists(st.integers(0, 99_999_999), unique=True, min_size=2))
def test_keys_and_names_sort_by_step(steps: list[int]) -> None:
    points = [EvalPoint(run="r", step=step) for step in steps]
    random.Random(0).shuffle(points)
    assert [p.step for p in sorted(points, key=lambda p: p.key)] == sorted(steps)
    small = [p for p in points if p.step < 1_000_000]
    assert sorted(small, key=lambda p: p.name) == sorted(small, key=lambda p: p.step)


def test_keys_of_two_attempts_at_a_step_differ() -> None:
    assert POINT.key != replace(POINT, attempt=1).key


@pytest.mark.parametrize(
    "other",
    [
        {"run": "other"},
        {"step": 11},
        {"attempt": 1},
        {"snapshot_digest": "f" * 32},
    ],
)
def test_a_weight_version_is_unique_for_run_step_attempt_and_content(other: dict[str, str | int]) -> None:
    version = WeightVersion(run="run", step=10, attempt=0, snapshot_digest="0" * 32)
    assert replace(version, **other).token != version.token  # type: ignore[arg-type]


def test_values_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        POINT.step = 11  # type: ignore[misc]
    with pytest.raises(ValidationError):
        request().deadline_s = 1  # type: ignore[misc]


def test_a_fleet_is_pinned_by_a_right_proof_of_each_engine() -> None:
    pinned = PinnedFleet(lease=lease("a", "b"), snapshot=SNAPSHOT, proofs=(proof("a"), proof("b")))
    assert pinned.version.token == TOKEN


def test_a_fleet_without_a_proof_of_each_engine_is_not_pinned() -> None:
    with pytest.raises(PinViolation, match="'b': 'nothing'") as caught:
        PinnedFleet(lease=lease("a", "b"), snapshot=SNAPSHOT, proofs=(proof("a"),))
    assert caught.value.expected == TOKEN


def test_a_fleet_without_engines_is_not_pinned() -> None:
    with pytest.raises(PinViolation, match="no engines"):
        PinnedFleet(lease=lease(), snapshot=SNAPSHOT, proofs=())


def test_a_fleet_with_an_engine_of_another_version_is_not_pinned() -> None:
    with pytest.raises(PinViolation, match="run/9/0/old") as caught:
        PinnedFleet(lease=lease("a", "b"), snapshot=SNAPSHOT, proofs=(proof("a"), proof("b", "run/9/0/old")))
    assert caught.value.reported == {"b": "run/9/0/old"}


def test_a_fleet_whose_engines_hold_different_weights_is_not_pinned() -> None:
    with pytest.raises(PinViolation, match="different weights"):
        PinnedFleet(lease=lease("a", "b"), snapshot=SNAPSHOT, proofs=(proof("a"), proof("b", checksum="d")))


def test_the_key_of_a_fleet_is_not_printed() -> None:
    assert "secret" not in repr(lease("a"))


def test_a_request_survives_json() -> None:
    asked = request(EvalPoint(run="r", step=7, attempt=2, final=True, missed=(3, 5)), staged="/dev/shm/x", deadline_s=5)
    assert EvalRequest.model_validate_json(asked.model_dump_json()) == asked
    assert EvalRequest.model_validate(asked.model_dump(mode="json")) == asked


@pytest.mark.parametrize("record", [REPORT, SKIPPED], ids=["report", "skip"])
def test_a_record_survives_json_and_says_its_kind(record: PointRecord) -> None:
    adapter: TypeAdapter[PointRecord] = TypeAdapter(PointRecord)
    assert adapter.validate_json(adapter.dump_json(record)) == record


def test_a_report_that_was_written_before_these_numbers_were_noted_still_reads() -> None:
    adapter: TypeAdapter[PointRecord] = TypeAdapter(PointRecord)
    written = adapter.dump_python(REPORT, mode="json")
    for name in ("comparisons", "points_so_far"):
        del written[name]
    for name in ("samples_per_prompt", "score_completed", "pass_at_k", "best_at_k", "lengths", "repetition_ratio"):
        del written["results"][0][name]
    del written["results"][0]["score"]["method"]
    assert adapter.validate_python(written) == REPORT


def test_a_report_with_all_its_numbers_survives_json() -> None:
    score = Estimate(mean=0.5, stderr=0.1, low=0.3, high=0.7, n=10, method="t")
    spread = Lengths(mean=2.5, p10=1.0, p50=2.0, p90=4.0, p99=4.0, longest=4, n=10)
    result = replace(
        REPORT.results[0], pass_at_k={1: score, 4: score}, best_at_k={2: score}, score_completed=score, lengths=spread
    )
    found = PairedDifference(mean=0.1, stderr=0.02, n=10, gained=3, lost=1, low=0.0, high=0.2, p_value=0.04, method="t")
    compared = Comparison(dataset="sums", against="previous", other=POINT, difference=found)
    report = replace(REPORT, results=(result,), comparisons=(compared,), points_so_far=2)
    adapter: TypeAdapter[PointRecord] = TypeAdapter(PointRecord)
    assert adapter.validate_json(adapter.dump_json(report)) == report


def test_a_request_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        EvalRequest.model_validate({**request().model_dump(), "prio": 1})


def test_dataset_names_used_twice_are_named() -> None:
    with pytest.raises(ValidationError, match="used twice: b"):
        Suite(name="s", datasets=(dataset("a"), dataset("b"), dataset("b")))


def test_an_answer_pattern_that_does_not_compile_is_refused() -> None:
    with pytest.raises(ValidationError, match="not a regular expression"):
        dataset(answer_pattern="(")


def test_the_reasoning_gym_grader_needs_a_reasoning_gym_source() -> None:
    with pytest.raises(ValidationError, match="needs a reasoning_gym source"):
        dataset(grader="reasoning_gym")
    DatasetSpec(name="a", source=ReasoningGymSource(reasoning_gym="basic_arithmetic"), grader="reasoning_gym")


def test_the_vocabulary_imports_nothing_of_pinpoint_but_its_errors() -> None:
    imported: set[str] = set()
    for module in Path(infra.model.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    ours = {name for name in imported if name.split(".")[0] in ("infra", "tasks", "flows", "trainer_integration")}
    assert {name for name in ours if not name.startswith("infra.model.")} == {"infra.errors"}


@pytest.mark.parametrize("name", ["api_key", "admin-api-key", "--ssl-keyfile-password"])
def test_a_key_of_the_rollout_engines_is_in_no_fleet_spec(name: str) -> None:
    spec = FleetSpec(rollout_engine_args={name: "SECRET", "dtype": "bfloat16"})
    assert spec.rollout_engine_args == {"dtype": "bfloat16"}
    assert "SECRET" not in spec.model_dump_json()

"""A sink gets every point of a run at the step that was dispatched, however late, in whatever order, and none of them twice."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.errors import ConfigError
from infra.model import Estimate, EvalPoint, EvalReport, SkippedPoint
from infra.records import commit
from infra.sinks import SINKS, Place, SinkFailed, open_sink
from infra.sinks.metrics import metrics_of, points_of
from infra.sinks.projection import project
from infra.store import Store
from tests.infra import sink_readers
from tests.infra.examples import REPORT, RESULT, SKIPPED
from tests.infra.sink_readers import Numbers
from tests.services.s3 import S3Server

READERS: dict[str, Callable[[Path, str, str], Numbers]] = {
    "jsonl": sink_readers.of_jsonl,
    "tensorboard": sink_readers.of_tensorboard,
    "mlflow": sink_readers.of_mlflow,
    "wandb": sink_readers.of_wandb,
}
SLOW = ("mlflow", "wandb")  # seconds each: a database is made, a service of W&B's own started
HERE = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in sorted(READERS)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Trackers that stay on this machine, in a folder from which nothing is written anywhere else."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DIR", "WANDB_PROJECT", "WANDB_ENTITY", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return Place(store=Store((tmp_path / "store").as_uri()), run="run", home=tmp_path / "home")


def measured(place: Place, step: int, attempt: int = 0, **changes: Any) -> EvalReport:
    """A point whose score is a thousandth of its step."""
    score = Estimate(mean=step / 1000, stderr=0.1, low=0.0, high=1.0, n=10)
    results = (replace(RESULT, score=score, weight_version_mean=float(step)),)
    report = replace(REPORT, point=EvalPoint(run=place.run, step=step, attempt=attempt), results=results, **changes)
    commit(place.store, report)
    return report


def skipped(place: Place, step: int) -> SkippedPoint:
    record = replace(SKIPPED, point=EvalPoint(run=place.run, step=step))
    commit(place.store, record)
    return record


def new(name: str, place: Place) -> int:
    _, written, _ = project(name, place)
    return written


def read(name: str, place: Place, metric: str = "eval/sums") -> Numbers:
    return READERS[name](place.home, place.run, metric)


@pytest.mark.parametrize("name", HERE)
def test_points_that_come_late_and_out_of_order_land_at_their_own_step(place: Place, name: str) -> None:
    for steps in ([40], [20, 60], [0, 10]):
        for step in steps:
            measured(place, step)
        assert new(name, place) == len(steps)
    assert sorted(read(name, place)) == [(step, step / 1000) for step in (0, 10, 20, 40, 60)]
    assert sorted(read(name, place, "eval/sums/weight_version/mean")) == [(step, float(step)) for step in (0, 10, 20, 40, 60)]


@pytest.mark.parametrize("name", HERE)
def test_a_second_replay_adds_nothing(place: Place, name: str) -> None:
    for step in (0, 20):
        measured(place, step)
    assert [new(name, place) for _ in range(3)] == [2, 0, 0]
    assert sorted(read(name, place)) == [(0, 0.0), (20, 0.02)]


@pytest.mark.parametrize("name", HERE)
def test_a_skip_is_at_its_step_with_its_reason(place: Place, name: str) -> None:
    measured(place, 0)
    skipped(place, 20)
    new(name, place)
    assert read(name, place, "eval/skipped_busy") == [(20, 1.0)]
    assert read(name, place) == [(0, 0.0)]


@pytest.mark.parametrize("name", HERE)
def test_suites_and_attempts_at_one_step_are_points_of_their_own(place: Place, name: str) -> None:
    measured(place, 20)
    measured(place, 20, attempt=1)
    commit(place.store, replace(measured(place, 40), suite="other", finished_at="2026-01-01T00:00:09+00:00"))
    assert new(name, place) == 4
    assert sorted(read(name, place, "eval/attempt")) == [(20, 0.0), (20, 1.0), (40, 0.0), (40, 0.0)]


@pytest.mark.parametrize("name", HERE)
def test_runs_do_not_mix(place: Place, name: str) -> None:
    other = replace(place, run="run2")
    measured(place, 20)
    measured(other, 30)
    assert (new(name, place), new(name, other)) == (1, 1)
    assert (read(name, place), read(name, other)) == ([(20, 0.02)], [(30, 0.03)])


@pytest.mark.parametrize("name", HERE)
def test_projections_at_once_write_each_point_once(place: Place, name: str) -> None:
    for step in random.Random(0).sample(range(0, 100, 10), 10):
        measured(place, step)
    with ThreadPoolExecutor(3) as pool:
        written = list(pool.map(lambda _: new(name, place), range(3)))
    assert sorted(written) == [0, 0, 10]
    assert sorted(read(name, place)) == [(step, step / 1000) for step in range(0, 100, 10)]


@pytest.mark.slow
def test_a_run_in_object_storage_is_projected_once(place: Place, s3: S3Server) -> None:
    place = replace(place, store=Store(f"s3://{s3.bucket}/sinks"))
    for step in (20, 0):
        measured(place, step)
    for name in ("jsonl", "wandb"):
        with ThreadPoolExecutor(3) as pool:
            assert sorted(pool.map(lambda _, name=name: new(name, place), range(3))) == [0, 0, 2]
        assert read(name, place) in ([(0, 0.0), (20, 0.02)], [(20, 0.02), (0, 0.0)])


@pytest.mark.parametrize("name", HERE)
def test_metrics_of_a_black_box_are_kept_under_any_name(place: Place, name: str) -> None:
    commit(place.store, replace(REPORT, results=(), metrics={"mmlu,none": 0.25, "pass@1": 0.5, "a/b": 0.75}))
    assert new(name, place) == 1
    assert read(name, place, "eval/a/b") == [(10, 0.75)]
    shown = "eval/mmlu_none" if name == "mlflow" else "eval/mmlu,none"
    assert read(name, place, shown) == [(10, 0.25)]


def test_a_black_box_does_not_say_at_which_step_its_point_is() -> None:
    found = metrics_of(replace(REPORT, results=(), metrics={"step": 0.5, "lag_steps": 0.5, "mmlu": 0.5}))
    assert (found["eval/step"], found["eval/lag_steps"], found["eval/mmlu"]) == (10.0, 3.0, 0.5)


def test_every_number_that_a_trainer_gets_is_in_a_sink(place: Place) -> None:
    report = measured(place, 20)
    [point] = points_of(place.store, place.run)
    assert point.metrics == {**metrics_of(report), "eval/attempt": 0.0}
    assert {"eval/step", "eval/sums", "eval/sums/stderr", "eval/lag_steps"} <= point.metrics.keys()


def test_a_file_of_lines_is_by_step_and_says_what_each_point_is(place: Place) -> None:
    for step in (40, 0):
        measured(place, step)
        new("jsonl", place)
    skipped(place, 20)
    new("jsonl", place)
    lines = sink_readers.lines_of_jsonl(place.home, place.run)
    assert [(line["step"], line["kind"]) for line in lines] == [(0, "report"), (20, "skip"), (40, "report")]
    assert (lines[1]["reason"], lines[1]["message"]) == ("busy", "2 in flight")


def test_a_file_that_was_deleted_or_torn_is_made_again(place: Place) -> None:
    measured(place, 0)
    new("jsonl", place)
    file = place.home / "sinks" / "jsonl" / "run.jsonl"
    whole = file.read_bytes()
    for spoil in (file.unlink, lambda: file.write_bytes(whole[:-9])):
        spoil()
        assert new("jsonl", place) == 1
        assert file.read_bytes() == whole


def test_tensorboard_shows_which_points_it_has_as_text(place: Place) -> None:
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    measured(place, 20)
    new("tensorboard", place)
    read = EventMultiplexer().AddRunsFromDirectory(str(place.home / "sinks" / "tensorboard")).Reload()
    [event] = read.Tensors("run", "pinpoint/point")
    assert event.tensor_proto.string_val == [b"step00000020-a0/suite"]


def test_an_event_file_that_was_cut_off_is_no_event_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    measured(place, 0)
    real = RecordWriter.write
    monkeypatch.setattr(RecordWriter, "write", lambda self, data: real(self, data) if len(data) < 60 else 1 / 0)
    with pytest.raises(SinkFailed, match="ZeroDivisionError"):
        new("tensorboard", place)
    monkeypatch.undo()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert new("tensorboard", place) == 1
    assert read("tensorboard", place) == [(0, 0.0)]


@pytest.mark.slow
def test_mlflow_writes_to_the_folder_of_files_that_its_own_variable_names(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for step in (40, 20):
        measured(place, step)
        assert new("mlflow", place) == 1
    assert new("mlflow", place) == 0
    assert sorted(read("mlflow", place, "eval.sums")) == [(20, 0.02), (40, 0.04)]
    assert (tmp_path / "mlruns").is_dir()


@pytest.mark.slow
def test_a_point_that_mlflow_has_without_its_tag_is_not_there_twice(place: Place) -> None:
    """A request that was cut off between the numbers and the tag."""
    from mlflow import MlflowClient

    measured(place, 20)
    new("mlflow", place)
    client = MlflowClient(f"sqlite:///{place.home / 'sinks' / 'mlflow.db'}")
    [run] = client.search_runs([found.experiment_id for found in client.search_experiments()])
    assert run.info.status == "FINISHED"
    client.delete_tag(run.info.run_id, "pinpoint.point.step00000020-a0/suite")
    assert new("mlflow", place) == 1
    assert read("mlflow", place) == [(20, 0.02)]


@pytest.mark.slow
def test_wandb_plots_over_the_step_that_was_dispatched(place: Place) -> None:
    measured(place, 20)
    new("wandb", place)
    [file] = (place.home / "sinks").glob("wandb/offline-run-*/run-run-eval.wandb")
    metrics = [record.metric for record in sink_readers.wandb_records(file) if record.WhichOneof("record_type") == "metric"]
    assert [(metric.name or metric.glob_name, metric.step_metric) for metric in metrics] == [
        ("eval/step", ""),
        ("eval/*", "eval/step"),
    ]


@pytest.mark.slow
def test_what_a_disabled_wandb_did_not_keep_is_not_taken_for_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(place, 20)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert new("wandb", place) == 0
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert new("wandb", place) == 1


@pytest.mark.slow
def test_another_project_is_another_place(place: Place) -> None:
    measured(place, 20)
    for name in ("wandb", "mlflow"):
        assert [new(name, replace(place, project=project)) for project in (None, "mine", "mine")] == [1, 1, 0]


@pytest.mark.slow
def test_nothing_is_written_outside_of_home_and_store(place: Place, tmp_path: Path) -> None:
    measured(place, 20)
    for name in READERS:
        new(name, place)
    assert {path.name for path in tmp_path.iterdir()} == {"home", "store"}


@pytest.mark.parametrize(
    ("name", "package", "remedy"),
    [
        ("wandb", "wandb", "pinpoint-eval[wandb]"),
        ("mlflow", "mlflow", "pinpoint-eval[mlflow]"),
        ("tensorboard", "tensorboard", "pinpoint-eval[tensorboard]"),
        ("trackio", "trackio", "install trackio beside Pinpoint"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_remedy(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, package: str, remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        open_sink(name, place)
    assert package in str(caught.value)
    assert remedy in str(caught.value)


def test_a_sink_that_does_not_exist_is_refused_with_the_nearest(place: Place) -> None:
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        open_sink("tensor-board", place)
    with pytest.raises(ConfigError, match=", ".join(SINKS)):
        open_sink("xyz", place)

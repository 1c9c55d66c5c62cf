"""`pinpoint replay`: a run's points go from the store to a tracker, those that it does not have; it can be repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from infra.errors import ConfigError
from infra.records import commit
from infra.store import Store
from tests.infra import sink_readers
from tests.infra.examples import SKIPPED, report_at


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    url = (tmp_path / "store").as_uri()
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PINPOINT_STORE_URL", url)
    store = Store(url)
    for record in (report_at(20), report_at(0), SKIPPED):
        commit(store, record)
    return store


def replay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments])


def refused(*arguments: str) -> str:
    """The one line that the user reads: `main` prints a ConfigError as such, with exit code 2."""
    done = replay(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    assert done.output == ""
    return str(done.exception)


def test_a_run_goes_to_the_sinks_that_are_named_and_it_says_where_to(store: Store, tmp_path: Path) -> None:
    done = replay("run", "--to", "jsonl", "--to", "tensorboard")
    assert done.exit_code == 0, done.output
    first, second = done.output.splitlines()
    assert first.startswith("jsonl: 3 of 3 points were new to ")
    assert first.endswith(str(tmp_path / "home" / "sinks" / "jsonl" / "run.jsonl"))
    assert second.startswith("tensorboard: 3 of 3 points were new to ")
    assert sink_readers.of_jsonl(tmp_path / "home", "run", "eval/sums") == [(0, 0.5), (20, 0.5)]


def test_a_second_replay_says_that_nothing_was_new(store: Store) -> None:
    replay("run", "--to", "jsonl")
    assert replay("run", "--to", "jsonl").output.startswith("jsonl: 0 of 3 points were new to ")


def test_another_store_can_be_named(store: Store, tmp_path: Path) -> None:
    other = Store((tmp_path / "other").as_uri())
    commit(other, report_at(7, run="theirs"))
    assert replay("theirs", "--to", "jsonl", "--store", other.url).output.startswith("jsonl: 1 of 1")


@pytest.mark.slow
def test_the_project_is_the_tracker_s_own(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    done = replay("run", "--to", "wandb", "--project", "mine")
    assert done.exit_code == 0, done.output
    assert "/mine run run-eval, offline" in done.output
    [file] = (tmp_path / "home" / "sinks").glob("wandb/offline-run-*/run-run-eval.wandb")
    [run] = [record.run for record in sink_readers.wandb_records(file) if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.run_group, run.job_type) == ("mine", "run", "eval")


def test_an_unknown_run_or_sink_is_refused_before_anything_is_written(store: Store, tmp_path: Path) -> None:
    assert "no run 'rum'" in refused("rum", "--to", "jsonl")
    assert "runs there: run" in refused("rum", "--to", "jsonl")
    assert "did you mean 'jsonl'" in refused("run", "--to", "jsonl", "--to", "json")
    assert not (tmp_path / "home").exists()


def test_a_record_of_an_older_version_is_replayed(store: Store, tmp_path: Path) -> None:
    [key] = [key for key in store.list("runs/run/points/step00000020-a0") if key.endswith("record.json")]
    older = json.loads(store.read(key))
    for name in ("format", "metrics", "comparisons", "points_so_far"):
        del older[name]
    store.write(key, json.dumps(older).encode())
    assert replay("run", "--to", "jsonl").exit_code == 0
    assert sink_readers.of_jsonl(tmp_path / "home", "run", "eval/sums") == [(0, 0.5), (20, 0.5)]

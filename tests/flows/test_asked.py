"""What a person asks for from a terminal is delivered as a trainer's points are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.asked import delivery_of, named_by, point_of
from flows.cli import app
from infra.errors import ConfigError
from infra.records import next_attempt
from infra.store import Store
from infra.validation.resolve import resolve_checkpoint
from tests.infra.examples import request


def test_a_store_that_was_emptied_asks_prefect_for_other_flow_runs(tmp_path: Path) -> None:
    """Prefect never forgets a key, and the store counts attempts from 0 again."""
    asked = request(store_url=(tmp_path / "store").as_uri())
    store = Store(asked.store_url)
    assert next_attempt(store, asked.point.run) == 0
    first = delivery_of(asked).idempotency_key
    assert delivery_of(asked).idempotency_key == first
    shutil.rmtree(tmp_path / "store")
    assert next_attempt(store, asked.point.run) == 0
    assert delivery_of(asked).idempotency_key != first


def test_a_point_is_called_as_its_folder_is_whatever_leads_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run" / "checkpoint-500"
    folder.mkdir(parents=True)
    (tmp_path / "latest").symlink_to(folder)
    monkeypatch.chdir(folder)
    for typed in (".", str(tmp_path / "latest"), str(folder), f"{folder}/", folder.as_uri()):
        point = point_of(named_by(typed, resolve_checkpoint(typed).resolve()), None, None)
        assert (point.run, point.step) == ("checkpoint-500", 500), typed
    cached = tmp_path / "hub" / "snapshots" / "0a1b2c"
    assert point_of(named_by("Qwen/Qwen3-0.6B", cached), None, None).run == "Qwen3-0.6B"


def test_a_checkpoint_in_object_storage_is_told_which_command_is_for_it(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": 2}')
    (tmp_path / "suite.yaml").write_text("datasets: [{name: rows, source: rows.jsonl}]")
    done = CliRunner().invoke(app, ["evaluate", "s3://bucket/c", "--suite", str(tmp_path / "suite.yaml")])
    assert isinstance(done.exception, ConfigError)
    assert "pinpoint reevaluate s3://bucket/c" in str(done.exception)

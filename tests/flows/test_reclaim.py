"""`pinpoint reclaim` shows what it did and what it could not do, and fails for that in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from infra import leases
from infra.errors import StoreError
from infra.model import EvalPoint
from infra.snapshot import new_prefix
from infra.store import Store


def test_one_prefix_that_fails_hides_nothing_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PINPOINT_STAGING_DIR", str(tmp_path / "staging"))
    store = Store((tmp_path / "store").as_uri())
    for run in ("bad", "good"):
        leases.acquire(store, new_prefix(EvalPoint(run=run, step=1)), owner="killed", purpose="export", ttl_s=0.0)
    store.write("snapshots/bad", b"a file, where the folder of a run should be")
    done = CliRunner().invoke(app, ["reclaim", "--store", store.url])
    assert isinstance(done.exception, StoreError), done.output
    assert "not swept" in done.output
    assert "deleted" in done.output
    assert leases.known(store, "good") == []

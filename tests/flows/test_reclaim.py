"""`pinpoint reclaim` shows what it did and what it could not do, and fails for that in the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from infra import leases
from infra.errors import StoreError
from infra.model import EvalPoint
from infra.snapshot import new_prefix
from infra.staging import free_unlocked
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


def test_what_belongs_to_somebody_else_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("theirs", "left"):
        (tmp_path / "spare" / name).mkdir(parents=True)
    opened = os.open

    def guarded(path: Any, *more: Any, **named: Any) -> int:
        if str(path).endswith("theirs.lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *more, **named)

    monkeypatch.setattr(os, "open", guarded)
    assert list(free_unlocked(tmp_path, dry_run=False)) == [tmp_path / "spare" / "left"]
    assert [path.name for path in (tmp_path / "spare").iterdir()] == ["theirs"]

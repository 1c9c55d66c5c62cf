"""However and whenever the owner of a snapshot is killed: after its lease has expired and one sweep, nothing of it is left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.reclaim import sweep
from infra.s3_objects import PART_BYTES
from infra.snapshot import MANIFEST
from infra.store import Store
from tests.infra.checkpoints import make_checkpoint
from tests.services.dying_exporter import TTL_S
from tests.services.s3 import S3Server

SIGKILLED = -9
pytestmark = pytest.mark.slow


def killed_at(url: str, checkpoint: Path, step: int) -> bool:
    """Whether the exporter was still at work at its `step`-th store operation, where it was killed."""
    command = [sys.executable, "-m", "tests.services.dying_exporter", url, str(checkpoint), str(step)]
    code = subprocess.run(command, cwd=Path(__file__).parents[2], timeout=60, check=False).returncode
    assert code in (0, SIGKILLED)
    return code == SIGKILLED


def test_killed_at_any_operation_on_a_local_store(tmp_path: Path) -> None:
    checkpoint, step, seen_whole = make_checkpoint(tmp_path / "c"), 1, False
    while killed_at(url := (tmp_path / f"store-{step}").as_uri(), checkpoint, step):
        seen_whole |= any(key.endswith(MANIFEST) for key in Store(url).list("snapshots"))
        step += 1
    assert step > 20
    assert seen_whole
    time.sleep(TTL_S + 0.2)
    for at in range(1, step):
        store = Store((tmp_path / f"store-{at}").as_uri())
        sweep(store, tmp_path / "staging")
        assert {key for key in store.list("") if not key.startswith(".clock")} == set(), f"killed at operation {at}"


def test_killed_at_any_operation_on_a_real_s3_server(tmp_path: Path, s3: S3Server) -> None:
    """A file of several parts, so that kills fall inside of multipart uploads too."""
    checkpoint = make_checkpoint(tmp_path / "c")
    (checkpoint / "tokenizer.json").write_bytes(b"{" + b" " * (6 * PART_BYTES) + b"}")
    store = Store(f"s3://{s3.bucket}/killed-{time.time_ns()}")
    uploads = 0
    for step in (1, 3, 6, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 26):
        killed_at(store.url, checkpoint, step)
        uploads += len(store.open_uploads("snapshots"))
    assert uploads > 0
    time.sleep(TTL_S + 1.5)
    sweep(store, tmp_path / "staging")
    assert store.open_uploads("snapshots") == ()
    assert {key for key in store.list("") if not key.startswith(".clock")} == set()

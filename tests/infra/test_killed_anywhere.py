"""However and whenever the owner of a snapshot, or a sweep, is killed: after the leases have expired and one sweep nothing is
left but the record, if it was committed.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from infra.reclaim import sweep
from infra.records import find
from infra.s3_objects import PART_BYTES
from infra.snapshot import MANIFEST
from infra.store import PROBES, Store
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import POINT
from tests.services import dying_owner
from tests.services.dying_owner import RECORD, TTL_S
from tests.services.forks import FORKS, HANGS_S
from tests.services.s3 import S3Server

SIGKILLED = -9
pytestmark = pytest.mark.slow


def killed_at(step: int, act: str, url: str, staging: Path, checkpoint: Path) -> bool:
    """Whether the process was still at work at its `step`-th step, where it was killed."""
    process = FORKS.Process(target=dying_owner.main, args=(dict(os.environ), act, url, staging, checkpoint, step))
    process.start()
    process.join(HANGS_S)
    assert process.exitcode in (0, SIGKILLED)
    return process.exitcode == SIGKILLED


def left(store: Store, staging: Path) -> set[str]:
    """What is there but records; half-done writes of a killed process included."""
    root = store.local_path("")
    keys = set(store.list("")) if root is None else {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    files = {str(path) for path in staging.rglob("*") if path.is_file()}
    return files | {key for key in keys if not key.startswith((PROBES, "runs/"))}


def test_killed_at_any_step_on_a_local_store(tmp_path: Path) -> None:
    checkpoint, step, seen = make_checkpoint(tmp_path / "c"), 1, set[str]()
    while killed_at(step, "own", url := (tmp_path / f"store-{step}").as_uri(), tmp_path / f"staging-{step}", checkpoint):
        keys, staged = Store(url).list(""), list((tmp_path / f"staging-{step}").rglob("*.safetensors"))
        seen |= {"staged"} if staged and not keys else set()
        seen |= {"half sent"} if any(key.startswith("snapshots/") for key in keys) else set()
        seen |= {"whole"} if any(key.endswith(MANIFEST) for key in keys) else set()
        seen |= {"recorded"} if find(Store(url), POINT, "suite") and staged else set()
        seen |= {"half retired"} if any("/deletions/" in key for key in keys) else set()
        step += 1
    assert seen == {"staged", "half sent", "whole", "recorded", "half retired"}
    aged(tmp_path)
    for at in range(1, step):
        store, staging = Store((tmp_path / f"store-{at}").as_uri()), tmp_path / f"staging-{at}"
        recorded = find(store, POINT, "suite")
        sweep(store, staging)
        assert left(store, staging) == set(), f"killed at step {at}"
        assert find(store, POINT, "suite") == recorded
        assert recorded in (None, RECORD)


def orphaned(tmp_path: Path, checkpoint: Path) -> tuple[Path, Path]:
    """A store and a staging area whose owner was killed right after it had committed its record."""
    for step in range(20, 80):
        store, staging = tmp_path / f"orphan-{step}", tmp_path / f"orphan-staging-{step}"
        killed_at(step, "own", store.as_uri(), staging, checkpoint)
        if find(Store(store.as_uri()), POINT, "suite"):
            return store, staging
    raise AssertionError("no record was committed")


def aged(folder: Path) -> None:
    """An hour later, by the clock of a local store."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 3600,) * 2)


def test_a_sweep_that_is_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    store, staging = orphaned(tmp_path, checkpoint := make_checkpoint(tmp_path / "c"))
    step, more = 1, True
    while more:
        once, stage = shutil.copytree(store, tmp_path / f"swept-{step}"), shutil.copytree(staging, tmp_path / f"stage-{step}")
        aged(once)
        aged(stage)
        more = killed_at(step, "sweep", once.as_uri(), stage, checkpoint)
        sweep(Store(once.as_uri()), stage)
        assert left(Store(once.as_uri()), stage) == set(), f"killed at step {step}"
        assert find(Store(once.as_uri()), POINT, "suite") == RECORD
        step += 1
    assert step > 8


def test_killed_at_any_step_on_a_real_s3_server(tmp_path: Path, s3: S3Server) -> None:
    """A file of several parts, so that kills fall inside of multipart uploads too."""
    checkpoint = make_checkpoint(tmp_path / "c")
    (checkpoint / "tokenizer.json").write_bytes(b"{" + b" " * (2 * PART_BYTES + 2**20) + b"}")
    store = Store(f"s3://{s3.bucket}/killed-{time.time_ns()}")
    step, uploads = 1, 0
    while killed_at(step, "own", store.url, tmp_path / "staging", checkpoint):
        uploads = max(uploads, len(store.open_uploads("snapshots")))
        step += 1
    assert step > 30
    assert uploads > 0
    time.sleep(TTL_S + 1.5)
    sweep(store, tmp_path / "staging")
    assert store.open_uploads("snapshots") == ()
    assert left(store, tmp_path / "staging") == set()

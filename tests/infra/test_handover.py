"""What a killed export had sent is kept for the one process that is started in its place, and for no other."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from infra import leases
from infra.errors import AlreadyExists, SnapshotMissing
from infra.export import complete, send
from infra.handover import leave, take
from infra.model import EvalPoint
from infra.reclaim import sweep
from infra.retention import retire_snapshots
from infra.snapshot import assemble, new_prefix, read_manifest, validate
from infra.store import Store
from tests.infra.checkpoints import make_checkpoint
from tests.services.s3 import S3Server

POINT = EvalPoint(run="run", step=10)
OWNER = leases.owner_of(POINT)


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "file":
        return Store((tmp_path / "store").as_uri())
    server: S3Server = request.getfixturevalue("s3")
    return Store(f"s3://{server.bucket}/handover-{time.time_ns()}")


def exporting(store: Store, by: str, point: EvalPoint = POINT, ttl_s: float = 60.0) -> str:
    prefix = new_prefix(point)
    leases.acquire(store, prefix, owner=leases.owner_of(point), purpose="export", ttl_s=ttl_s, by=by)
    store.write(f"{prefix}/config.json", b"{}")
    return prefix


def test_one_of_many_has_what_was_left_and_the_others_have_nothing(store: Store) -> None:
    prefix = exporting(store, "flow")
    leave(store, POINT, "flow")
    with ThreadPoolExecutor(4) as pool:
        taken = [found for found in pool.map(lambda _: take(store, POINT, "flow"), range(4)) if found]
    [(place, holder)] = taken
    assert place == prefix
    assert holder in leases.live_holders(store, prefix)
    assert len(leases.live_holders(store, prefix)) == 2  # the killed one, which does not renew, and its successor
    leases.keep_hold(store, prefix, OWNER)
    assert retire_snapshots(store, POINT, 0) == len(b"{}")
    assert store.list("") == {}


def test_what_lives_or_is_of_another_flow_run_or_point_is_left_to_nobody(store: Store) -> None:
    exporting(store, "alive")
    exporting(store, "dead2")
    exporting(store, "dead", EvalPoint(run="run", step=1))
    exporting(store, "dead", EvalPoint(run="run", step=10, attempt=1))
    leave(store, POINT, "dead")
    assert take(store, POINT, "alive") is None
    assert take(store, POINT, "dead") is None
    assert not [key for key in store.list("leases") if "/left/" in key or "/taken/" in key]


def test_what_a_sweep_deletes_or_has_deleted_is_not_gone_on_with(tmp_path: Path) -> None:
    store = Store((tmp_path / "store").as_uri())
    prefix = exporting(store, "flow", ttl_s=0.1)
    leave(store, POINT, "flow")
    mark = f"{leases.home_of(prefix)}/deletions/sweep"
    store.write(mark, b"{}")
    with pytest.raises(SnapshotMissing):
        leases.acquire(store, prefix, owner=OWNER, purpose="export")
    assert take(store, POINT, "flow") is None
    store.delete(mark)
    time.sleep(0.2)
    [found] = sweep(store, tmp_path / "staging")
    assert found.deleted
    assert take(store, POINT, "flow") is None
    assert store.list("") == {}


async def test_a_snapshot_that_was_complete_is_kept_by_a_successor_on_another_host(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    leases.acquire(store, prefix, owner=OWNER, purpose="export", by="flow")
    sent = await send(store, folder, validate(folder), prefix)
    await complete(store, prefix, assemble(sent.files, sent.tensors, POINT), OWNER)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    again = await send(store, folder, validate(folder), prefix)
    assert again.n_bytes == 0
    manifest = assemble(again.files, again.tensors, POINT)
    await complete(store, prefix, manifest, OWNER)
    assert manifest.made_by == "pinpoint on another"
    assert read_manifest(store, prefix).made_by != manifest.made_by
    other = replace(manifest, snapshot_digest="0" * 32)
    with pytest.raises(AlreadyExists):
        await complete(store, prefix, other, OWNER)

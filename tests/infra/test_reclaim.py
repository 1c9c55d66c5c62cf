"""What no live lease claims is deleted, and nothing that Pinpoint did not make is touched."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import leases
from infra.errors import StoreError
from infra.model import EvalPoint
from infra.reclaim import rows, sweep
from infra.snapshot import MANIFEST, new_prefix
from infra.staging import free_staged, lock_spare, new_staged, share_fetched, stale_staged
from infra.store import PROBES, Store
from tests.services.s3 import S3Server

POINT = EvalPoint(run="run", step=10)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


def snapshot(store: Store, ttl_s: float) -> str:
    prefix = new_prefix(POINT)
    leases.acquire(store, prefix, owner="run/step", purpose="export", ttl_s=ttl_s)
    store.write(f"{prefix}/model.safetensors", b"12345")
    store.write(f"{prefix}/{MANIFEST}", b"{}")
    return prefix


def test_a_sweep_deletes_the_orphan_and_spares_what_is_held_and_what_is_foreign(store: Store, tmp_path: Path) -> None:
    orphan, held = snapshot(store, ttl_s=0.0), snapshot(store, ttl_s=60.0)
    store.write("snapshots/run/somebody-elses/model.safetensors", b"x")
    store.write("runs/run/points/p/s/record.json", b"{}")
    found = {item.place: item for item in sweep(store, tmp_path)}
    assert set(found) == {store.url_of(orphan), store.url_of(held)}
    assert (found[store.url_of(orphan)].deleted, found[store.url_of(orphan)].size) == (True, 7)
    assert not found[store.url_of(held)].deleted
    assert found[store.url_of(held)].holders == ("run/step (export)",)
    kept = {key for key in store.list("") if not key.startswith("leases/")}
    assert kept == {
        f"{held}/model.safetensors",
        f"{held}/{MANIFEST}",
        "snapshots/run/somebody-elses/model.safetensors",
        "runs/run/points/p/s/record.json",
    }


def test_what_a_frozen_worker_sent_after_its_export_was_swept_is_found_without_a_record(store: Store, tmp_path: Path) -> None:
    swept, young, copied = (new_prefix(POINT) for _ in range(3))
    leases.acquire(store, swept, owner="run/step", purpose="export", ttl_s=0.0)
    time.sleep(0.05)
    assert [found.deleted for found in sweep(store, tmp_path)] == [True]
    for prefix in (swept, young, copied):  # as its `Store.upload`, before it could note anything
        store.write(f"{prefix}/model.safetensors", b"12345")
    store.write(f"{copied}/{MANIFEST}", b"{}")
    for prefix in (swept, copied):
        os.utime(tmp_path / "store" / prefix / "model.safetensors", (time.time() - 2 * leases.TTL_S,) * 2)
    assert [found.deleted for found in sweep(store, tmp_path, dry_run=True)] == [False]
    [found] = sweep(store, tmp_path)
    assert (found.place, found.size, found.deleted) == (store.url_of(swept), 5, True)
    assert set(store.list("")) == {f"{young}/model.safetensors", f"{copied}/model.safetensors", f"{copied}/{MANIFEST}"}


@pytest.mark.slow
def test_half_an_upload_without_a_record_is_ended_and_that_of_an_export_that_lives_is_not(s3: S3Server, tmp_path: Path) -> None:
    store, prefixes = Store(f"s3://{s3.bucket}/late-{time.time_ns()}"), [new_prefix(POINT), new_prefix(POINT)]
    leases.acquire(store, prefixes[1], owner="run/step", purpose="export")
    client = store._s3.fs
    for prefix in (*prefixes, "snapshots/run/somebody-elses"):
        bucket, _, key = store.url_of(f"{prefix}/model.safetensors").removeprefix("s3://").partition("/")
        client.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    assert {item.place: item.deleted for item in sweep(store, tmp_path)} == {
        store.url_of(prefixes[0]): True,
        store.url_of(prefixes[1]): False,
    }
    left = {key.rpartition("/")[0] for key, _ in store.open_uploads("snapshots")}
    assert left == {prefixes[1], "snapshots/run/somebody-elses"}


def test_a_dry_run_only_says(store: Store, tmp_path: Path) -> None:
    snapshot(store, ttl_s=0.0)
    before = {key for key in store.list("") if not key.startswith(PROBES)}
    [found] = sweep(store, tmp_path, dry_run=True)
    assert not found.deleted
    assert rows([found])[0]["state"] == "orphaned"
    assert set(store.list("")) == before


def test_a_staged_model_is_freed_when_its_time_is_over_unless_the_outbox_names_it(store: Store, tmp_path: Path) -> None:
    fresh, over, wanted = (new_staged(tmp_path, POINT, ttl_s=60.0) for _ in range(3))
    for folder in (fresh, over, wanted):
        (folder / "model.safetensors").write_bytes(b"123")
    long_ago = time.time() - 3600
    for folder in (over, wanted):
        os.utime(folder.parent / "ttl", (long_ago, long_ago))
    foreign = tmp_path / "staged" / "run" / "not-ours"
    foreign.mkdir()
    assert stale_staged(tmp_path, [wanted]) == {over: 3}
    [found] = sweep(store, tmp_path, wanted=[wanted])
    assert (found.deleted, found.size) == (True, 3)
    assert fresh.exists()
    assert wanted.exists()
    assert foreign.exists()
    assert not over.parent.exists()


def test_a_staged_model_that_another_sweep_frees_meanwhile_stops_no_sweep(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, spare, walk = new_staged(tmp_path, POINT, ttl_s=0.0), tmp_path / "spare" / "run", os.walk
    spare.mkdir(parents=True)
    for folder in (over, spare):
        (folder / "model.safetensors").write_bytes(b"12345")

    def freed_by_another(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for listed in walk(folder):
            free_staged(folder)
            yield listed

    time.sleep(0.05)
    with monkeypatch.context() as patched:
        patched.setattr(os, "walk", freed_by_another)
        found = sweep(store, tmp_path)
    assert [(item.place.rpartition(":")[2], item.size, item.deleted) for item in found] == [
        (str(over), 0, True),
        (str(spare), 0, True),
    ]


def test_freeing_twice_is_harmless_and_leaves_the_neighbours(tmp_path: Path) -> None:
    one, other = new_staged(tmp_path, POINT, ttl_s=1.0), new_staged(tmp_path, POINT, ttl_s=1.0)
    free_staged(one)
    free_staged(one)
    assert not one.parent.exists()
    assert other.exists()


def test_spare_memory_is_freed_when_its_process_is_gone_and_not_before(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "spare" / "run"
    lock = lock_spare(folder)
    assert lock is not None
    folder.mkdir()
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"12345")
    assert sweep(store, tmp_path) == []
    os.close(lock)  # as the kernel does for a process that was killed
    [only_said] = sweep(store, tmp_path, dry_run=True)
    assert (only_said.size, only_said.deleted, folder.exists()) == (5, False, True)
    [freed] = sweep(store, tmp_path)
    assert (freed.size, freed.deleted) == (5, True)
    assert list((tmp_path / "spare").iterdir()) == []


def test_memory_is_freed_even_if_the_store_is_down_and_one_bad_prefix_stops_no_other(tmp_path: Path) -> None:
    class Bad(Store):
        def delete(self, prefix: str) -> None:
            if "bad" in prefix:
                raise StoreError("that one can't be deleted")
            super().delete(prefix)

    store = Bad((tmp_path / "store").as_uri())
    for run in ("bad", "good"):
        leases.acquire(store, new_prefix(EvalPoint(run=run, step=1)), owner="killed", purpose="export", ttl_s=0.0)
    folder = new_staged(tmp_path / "staging", POINT, 0.0)
    time.sleep(0.05)
    with pytest.raises(StoreError, match="can't be deleted"):
        sweep(store, tmp_path / "staging")
    assert not folder.exists()
    assert {key.split("/")[1] for key in store.list("leases")} == {"bad"}


def test_what_killed_processes_left_half_written_is_tidied_after_an_hour(store: Store, tmp_path: Path) -> None:
    old, young = (tmp_path / "store" / "leases" / name for name in (f".a.json.{'0' * 32}", f".b.json.{'1' * 32}"))
    probe = tmp_path / "store" / PROBES / "dead"
    for path in (old, young, probe):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    for path in (old, probe):
        os.utime(path, (time.time() - 7200,) * 2)
    sweep(store, tmp_path / "staging")
    assert (old.exists(), probe.exists(), young.exists()) == (False, False, True)


def test_what_a_node_fetched_is_freed_when_its_process_is_gone_and_not_before(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "fetched" / "eval"
    (folder / "digest").mkdir(parents=True)
    (folder / "digest" / "model.safetensors").write_bytes(b"12345")
    locks = [share_fetched(folder), share_fetched(folder)]
    os.close(locks.pop())
    assert sweep(store, tmp_path) == []
    os.close(locks.pop())
    [freed] = sweep(store, tmp_path)
    assert (freed.size, freed.deleted, folder.exists()) == (5, True, False)

"""A snapshot is brought to a folder in parallel ranged reads, and is not there before every file of it has its digest."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from infra import fetched, fetching
from infra.errors import NoCapacity, SnapshotInvalid, SnapshotMissing
from infra.fetched import NodeCache
from infra.fetching import READS_AT_ONCE, fetch, make_room
from infra.model import Manifest, SnapshotRef
from infra.snapshot import describe, new_prefix, validate, write_manifest
from infra.staging import free_unlocked
from infra.store import Store
from infra.transfer import Stopped
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import POINT
from tests.infra.invalid_checkpoints import FIRST


class CountingStore(Store):
    """Says how many of its ranged reads were under way at once."""

    reading, most, started = 0, 0, 0
    lock = threading.Lock()
    enough = threading.Barrier(2, timeout=10)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        with self.lock:
            self.reading += 1
            self.started += 1
            self.most = max(self.most, self.reading)
            waits = self.started <= 2
        if waits:
            self.enough.wait()  # the first goes on when a second one is under way
        data = super().read_range(key, start, end)
        with self.lock:
            self.reading -= 1
        return data


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


def export(store: Store, folder: Path) -> tuple[str, Manifest]:
    manifest, prefix = describe(folder, validate(folder), POINT), new_prefix(POINT)
    for name in manifest.files:
        store.upload(folder / name, f"{prefix}/{name}")
    write_manifest(store, prefix, manifest)
    return prefix, manifest


def test_ranges_of_one_file_are_read_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "RANGE_BYTES", 1000)
    store = CountingStore((tmp_path / "store").as_uri())
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c", shards=2))
    fetch(store, prefix, manifest, tmp_path / "got")
    assert 2 <= store.most <= READS_AT_ONCE


def test_a_fetched_snapshot_is_the_one_that_was_exported(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "RANGE_BYTES", 1000)  # many ranges of each shard, which come in any order
    folder = make_checkpoint(tmp_path / "c", shards=2)
    prefix, manifest = export(store, folder)
    fetch(store, prefix, manifest, tmp_path / "got")
    assert {f.name: f.read_bytes() for f in (tmp_path / "got").iterdir()} == {f.name: f.read_bytes() for f in folder.iterdir()}


@pytest.mark.parametrize("name", [FIRST, "tokenizer.json", "config.json"])
def test_a_flipped_bit_on_the_way_is_found_and_the_file_named(store: Store, tmp_path: Path, name: str) -> None:
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c", shards=2))
    data = bytearray(store.read(f"{prefix}/{name}"))
    data[-1] ^= 1
    store.write(f"{prefix}/{name}", bytes(data))
    with pytest.raises(SnapshotInvalid) as caught:
        fetch(store, prefix, manifest, tmp_path / "got")
    assert caught.value.subject == name


def test_a_file_cut_short_on_the_way_is_found(store: Store, tmp_path: Path) -> None:
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c"))
    store.write(f"{prefix}/model.safetensors", store.read(f"{prefix}/model.safetensors")[:-10])
    with pytest.raises(SnapshotInvalid, match="model.safetensors"):
        fetch(store, prefix, manifest, tmp_path / "got")


def test_a_fetch_that_is_told_to_stop_reads_no_further_range(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a black box's deadline: the flow waits for the thread, which must not go on with the rest of a model."""
    monkeypatch.setattr(fetching, "RANGE_BYTES", 64)
    monkeypatch.setattr(fetching, "READS_AT_ONCE", 1)
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c", shards=2))
    stopping, read = threading.Event(), list[str]()

    class Stopping(Store):
        def read_range(self, key: str, start: int, end: int) -> bytes:
            read.append(key)
            stopping.set()
            return super().read_range(key, start, end)

    with pytest.raises(Stopped):
        fetch(Stopping(store.url), prefix, manifest, tmp_path / "fetched", stopping)
    assert len(read) == 1


def test_a_file_that_is_gone_is_missing(store: Store, tmp_path: Path) -> None:
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c"))
    store.delete(f"{prefix}/model.safetensors")
    with pytest.raises(SnapshotMissing, match="model.safetensors is gone"):
        fetch(store, prefix, manifest, tmp_path / "got")


def test_a_manifest_that_names_a_file_outside_is_refused(store: Store, tmp_path: Path) -> None:
    _, manifest = export(store, make_checkpoint(tmp_path / "c"))
    store.write("snapshots/evil", b"x")
    evil = replace(manifest, files={"../evil": manifest.files["config.json"]})
    with pytest.raises(SnapshotInvalid):
        fetch(store, "snapshots/run", evil, tmp_path / "folder" / "got")
    assert not (tmp_path / "folder" / "evil").exists()


def test_a_snapshot_that_has_no_room_is_refused_with_numbers_before_a_byte_of_it_is_read(store: Store, tmp_path: Path) -> None:
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c"))
    snapshot = SnapshotRef(point=POINT, location=f"s3://bucket/{prefix}", manifest=manifest, owned=True)
    cache = NodeCache(tmp_path / "fetched" / "eval", limit_bytes=manifest.n_bytes - 1)
    with pytest.raises(NoCapacity, match=f"a snapshot of {manifest.n_bytes:,} bytes has no room .* PINPOINT_FETCHED_BYTES"):
        cache.fetched(snapshot)
    assert [file for file in (tmp_path / "fetched").rglob("*") if file.is_file() and file.suffix == ".safetensors"] == []


def in_s3(monkeypatch: pytest.MonkeyPatch, store: Store, folder: Path) -> SnapshotRef:
    """A snapshot that is fetched, since its location is no folder; the bytes are in a local store."""
    prefix, manifest = export(store, folder)
    monkeypatch.setattr(fetched, "split_location", lambda location: (store, prefix))
    return SnapshotRef(point=POINT, location=f"s3://bucket/{prefix}", manifest=manifest, owned=True)


def test_a_late_eviction_leaves_what_a_neighbour_has_fetched_since(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, neighbour = (NodeCache(tmp_path / "fetched" / "eval") for _ in range(2))
    late.fetched(in_s3(monkeypatch, store, make_checkpoint(tmp_path / "a", seed=1)))
    wanted = neighbour.fetched(in_s3(monkeypatch, store, make_checkpoint(tmp_path / "b", seed=2)))
    late.evict()
    assert (wanted / "model.safetensors").exists()
    assert free_unlocked(tmp_path, dry_run=False) == {}  # the neighbour's lock is still the folder's
    neighbour.evict()
    assert list((tmp_path / "fetched").iterdir()) == []


def test_what_a_killed_fetch_left_takes_no_room_from_the_next(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = in_s3(monkeypatch, store, make_checkpoint(tmp_path / "a"))
    left = tmp_path / "fetched" / "eval" / f"{snapshot.manifest.snapshot_digest}.partial"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(bytes(snapshot.manifest.n_bytes))
    cache = NodeCache(tmp_path / "fetched" / "eval", limit_bytes=snapshot.manifest.n_bytes + 100)
    assert (cache.fetched(snapshot) / "model.safetensors").exists()
    cache.evict()


def test_a_disk_that_is_full_meanwhile_is_no_room(store: Store, tmp_path: Path) -> None:
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c"))
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch("os.posix_fallocate", side_effect=full), pytest.raises(NoCapacity, match="has no room .* PINPOINT_STAGING"):
        fetch(store, prefix, manifest, tmp_path / "got")


def test_what_neighbours_keep_counts(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_bytes(bytes(600))
    make_room(tmp_path, 400, 1000)
    with pytest.raises(NoCapacity, match="may take 1,000 bytes, of which 600 are taken"):
        make_room(tmp_path, 401, 1000)
    with pytest.raises(NoCapacity, match="are free there; set PINPOINT_STAGING_DIR"):
        make_room(tmp_path, 2**60, None)

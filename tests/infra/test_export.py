"""An export that is tried again sends only what is missing; one that is cancelled sends nothing more once it has returned."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from infra import leases
from infra.errors import AlreadyExists, ExportFailed, StoreError
from infra.export import complete, send, send_part
from infra.model import EvalPoint, StagedPart
from infra.retention import retire_snapshots
from infra.snapshot import MANIFEST, assemble, describe, new_prefix, read_manifest, validate
from infra.store import Store
from infra.transfer import Transfer
from tests.infra.checkpoints import make_checkpoint

POINT = EvalPoint(run="run", step=10)


class Watched(Store):
    """Counts uploads; the `fails`-th and later ones fail."""

    fails = 10**6
    uploads: list[str]

    def upload(self, source: Path, key: str, transfer: Transfer | None = None) -> None:
        self.uploads.append(source.name)
        if len(self.uploads) >= self.fails:
            raise StoreError("the store went away")
        super().upload(source, key, transfer)


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    store = Watched((tmp_path / "store").as_uri())
    store.uploads = []
    return store


async def exported(store: Store, folder: Path, prefix: str, point: EvalPoint = POINT) -> int:
    """Bytes that had to be sent."""
    if not leases.live_holders(store, prefix):
        leases.acquire(store, prefix, owner=leases.owner_of(point), purpose="export")
    sent = await send(store, folder, validate(folder), prefix)
    await complete(store, prefix, assemble(sent.files, sent.tensors, point), leases.owner_of(point))
    return sent.n_bytes


async def test_a_second_try_sends_only_what_the_first_did_not(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    store.fails = 3
    with pytest.raises(StoreError):
        await exported(store, folder, prefix)
    assert not store.exists(f"{prefix}/{MANIFEST}")
    sent, store.uploads, store.fails = set(store.list(prefix)), [], 10**6
    again = await exported(store, folder, prefix)
    manifest = read_manifest(store, prefix)
    assert {f"{prefix}/{name}" for name in store.uploads} == {f"{prefix}/{name}" for name in manifest.files} - sent
    assert again == sum(manifest.files[name].size for name in store.uploads)
    assert await exported(store, folder, prefix) == 0


async def test_what_is_learned_while_sending_is_what_reading_the_folder_tells(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c", shards=2), new_prefix(POINT)
    await exported(store, folder, prefix)
    assert read_manifest(store, prefix) == describe(folder, validate(folder), POINT)


async def test_a_file_of_the_right_size_that_was_not_sent_whole_is_sent_again(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    store.write(f"{prefix}/config.json", b" " * (folder / "config.json").stat().st_size)
    await exported(store, folder, prefix)
    assert "config.json" in store.uploads
    assert store.read(f"{prefix}/config.json") == (folder / "config.json").read_bytes()


async def test_a_file_that_is_another_than_the_one_sent_before_is_sent_again(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    await send(store, folder, validate(folder), prefix)
    config = (folder / "config.json").read_bytes().replace(b"16", b"32")
    (folder / "config.json").write_bytes(config)
    store.uploads = []
    await exported(store, folder, prefix)
    assert store.uploads == ["config.json"]
    assert store.read(f"{prefix}/config.json") == config


async def test_a_manifest_of_other_content_at_the_prefix_is_not_taken_for_ours(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    await exported(store, folder, prefix)
    (folder / "config.json").write_bytes((folder / "config.json").read_bytes().replace(b"16", b"32"))
    with pytest.raises(AlreadyExists):
        await exported(store, folder, prefix)


async def test_an_owner_that_was_away_for_too_long_completes_nothing(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export", ttl_s=0.2)
    sent = await send(store, folder, validate(folder), prefix)
    await asyncio.sleep(0.5)
    assert leases.delete_unless_held(store, prefix)  # a sweep, meanwhile
    with pytest.raises(ExportFailed, match="its lease expired"):
        await complete(store, prefix, assemble(sent.files, sent.tensors, POINT), leases.owner_of(POINT))
    assert not store.exists(f"{prefix}/{MANIFEST}")


async def test_a_file_that_is_gone_is_not_promised(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export")
    sent = await send(store, folder, validate(folder), prefix)
    store.delete(f"{prefix}/config.json")
    with pytest.raises(ExportFailed, match="config.json is not there any more"):
        await complete(store, prefix, assemble(sent.files, sent.tensors, POINT), leases.owner_of(POINT))
    assert not store.exists(f"{prefix}/{MANIFEST}")


async def test_a_part_that_is_cancelled_writes_nothing_after_it_has_returned(tmp_path: Path) -> None:
    class Slow(Store):
        def upload(self, source: Path, key: str, transfer: Transfer | None = None) -> None:
            time.sleep(0.4)
            super().upload(source, key, transfer)

    store, folder, prefix = Slow((tmp_path / "store").as_uri()), make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await send_part(store, StagedPart(path=str(folder)), prefix, with_metadata=True)
    there = store.list("")
    await asyncio.sleep(1.0)
    assert store.list("") == there


async def test_a_cancelled_export_writes_nothing_after_it_has_returned(tmp_path: Path) -> None:
    class Slow(Store):
        def upload(self, source: Path, key: str, transfer: Transfer | None = None) -> None:
            time.sleep(0.5)
            if transfer is None or not transfer.stopping.is_set():
                super().upload(source, key, transfer)

    store, folder, prefix = Slow((tmp_path / "store").as_uri()), make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await exported(store, folder, prefix)
    retire_snapshots(store, POINT, 0)
    await asyncio.sleep(1.0)
    assert store.list("") == {}

"""An export that is tried again sends only what is missing; one that is cancelled sends nothing more once it has returned."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from infra import leases
from infra.errors import AlreadyExists, StoreError
from infra.export import describe_folder, send
from infra.model import EvalPoint
from infra.snapshot import MANIFEST, new_prefix, read_manifest
from infra.store import Store
from tests.infra.checkpoints import make_checkpoint

POINT = EvalPoint(run="run", step=10)


class Watched(Store):
    """Counts uploads; the `fails`-th and later ones fail."""

    fails = 10**6
    uploads: list[str]

    def upload(self, source: Path, key: str, stopping: threading.Event | None = None) -> None:
        self.uploads.append(source.name)
        if len(self.uploads) >= self.fails:
            raise StoreError("the store went away")
        super().upload(source, key, stopping)


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    store = Watched((tmp_path / "store").as_uri())
    store.uploads = []
    return store


async def test_a_second_try_sends_only_what_the_first_did_not(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    manifest = await describe_folder(folder, POINT)
    store.fails = 3
    with pytest.raises(StoreError):
        await send(store, folder, manifest, prefix)
    assert not store.exists(f"{prefix}/{MANIFEST}")
    sent, store.uploads, store.fails = set(store.list(prefix)), [], 10**6
    again = await send(store, folder, manifest, prefix)
    assert {f"{prefix}/{name}" for name in store.uploads} == {f"{prefix}/{name}" for name in manifest.files} - sent
    assert again == sum(manifest.files[name].size for name in store.uploads)
    assert read_manifest(store, prefix) == manifest
    assert await send(store, folder, manifest, prefix) == 0


async def test_a_file_of_the_right_size_that_was_not_sent_whole_is_sent_again(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    manifest = await describe_folder(folder, POINT)
    store.write(f"{prefix}/config.json", b" " * manifest.files["config.json"].size)
    await send(store, folder, manifest, prefix)
    assert "config.json" in store.uploads
    assert store.read(f"{prefix}/config.json") == (folder / "config.json").read_bytes()


async def test_a_manifest_of_other_content_at_the_prefix_is_not_taken_for_ours(store: Watched, tmp_path: Path) -> None:
    folder, prefix = make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    manifest = await describe_folder(folder, POINT)
    other = await describe_folder(folder, EvalPoint(run="run", step=11))
    await send(store, folder, other, prefix)
    with pytest.raises(AlreadyExists):
        await send(store, folder, manifest, prefix)


async def test_a_cancelled_export_writes_nothing_after_it_has_returned(tmp_path: Path) -> None:
    class Slow(Store):
        def upload(self, source: Path, key: str, stopping: threading.Event | None = None) -> None:
            time.sleep(0.5)
            if stopping is None or not stopping.is_set():
                super().upload(source, key, stopping)

    store, folder, prefix = Slow((tmp_path / "store").as_uri()), make_checkpoint(tmp_path / "c"), new_prefix(POINT)
    leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export")
    manifest = await describe_folder(folder, POINT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await send(store, folder, manifest, prefix)
    leases.delete_owned(store, POINT)
    await asyncio.sleep(1.0)
    assert store.list("") == {}

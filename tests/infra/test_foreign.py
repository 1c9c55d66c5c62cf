"""A checkpoint in object storage has the digest of the same files in a folder; one that is deleted meanwhile is missing."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from infra import foreign
from infra.errors import SnapshotMissing
from infra.foreign import describe_place_once, noted
from infra.snapshot import validate
from infra.store import Store
from infra.validation.readers import LocalFolder, StorePrefix
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import POINT
from tests.services.s3 import S3Server


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "file":
        return Store((tmp_path / "bucket").as_uri())
    server: S3Server = request.getfixturevalue("s3")
    return Store(f"s3://{server.bucket}/foreign-{time.time_ns()}")


def test_the_digest_is_that_of_the_same_files_in_a_folder(
    tmp_path: Path, remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "BLOCK_BYTES", 100)  # tensors and headers end within blocks
    folder, store = make_checkpoint(tmp_path / "step_1", shards=2), Store((tmp_path / "store").as_uri())
    for file in folder.iterdir():
        remote.upload(file, f"step_1/{file.name}")
    place, files = StorePrefix(remote, "step_1"), validate(folder)
    assert noted(store, place, files, POINT) is None
    made = describe_place_once(store, place, files, POINT)
    assert made == describe_place_once(store, LocalFolder(folder), files, POINT)
    assert noted(store, place, files, POINT) == made
    remote.write(f"step_1/{files[0]}", b"{}")
    assert noted(store, place, files, POINT) is None


@pytest.mark.parametrize("what", ["folder", "one file"])
def test_one_that_is_deleted_while_it_is_read_is_missing(tmp_path: Path, what: str) -> None:
    folder, store = make_checkpoint(tmp_path / "step_1"), Store((tmp_path / "store").as_uri())
    files = validate(folder)
    if what == "folder":
        shutil.rmtree(folder)
    else:
        (folder / "model.safetensors").unlink()
    with pytest.raises(SnapshotMissing, match="was deleted while it was read"):
        describe_place_once(store, LocalFolder(folder), files, POINT)
    with pytest.raises(SnapshotMissing, match="was deleted while it was read"):
        describe_place_once(store, StorePrefix(Store(tmp_path.as_uri()), "step_1"), files, POINT)

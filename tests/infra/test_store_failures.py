"""What a store can't do is said with the store's name and the remedy, and is told apart: denied, unreachable, failed."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from infra import local_files
from infra.errors import ConfigError, StoreDenied, StoreError, StoreUnreachable
from infra.store import Store, split_location
from tests.services.ports import free_port
from tests.services.s3 import S3Server


@pytest.mark.parametrize("url", ["", "/tmp/x", "gs://b/x", "http://x", "s3://", "file://", "s3:/b", "memory://x"])
def test_a_url_that_is_neither_file_nor_s3_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="use file:///folder or s3://bucket/prefix"):
        Store(url)


def test_a_folder_that_cannot_be_written_is_a_store_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store((tmp_path / "file" / "store").as_uri())
    with pytest.raises(StoreError, match=str(tmp_path / "file" / "store")):
        store.check()
    with pytest.raises(StoreError):
        store.create("a", b"x")
    with pytest.raises(StoreError):
        store.upload(tmp_path / "file", "a")


def test_an_object_in_the_way_of_a_folder_is_a_store_error(tmp_path: Path) -> None:
    store = Store(tmp_path.as_uri())
    store.write("a", b"x")
    with pytest.raises(StoreError):
        store.write("a/b", b"x")


def test_an_upload_that_breaks_off_leaves_no_object(tmp_path: Path) -> None:
    store = Store((tmp_path / "store").as_uri())
    with pytest.raises(StoreError):
        store.upload(tmp_path, "a")  # a folder opens, but can't be read
    with pytest.raises(FileNotFoundError):
        store.upload(tmp_path / "missing", "a")
    assert store.list("") == {}


def test_a_reader_never_sees_half_an_upload(tmp_path: Path) -> None:
    store = Store((tmp_path / "store").as_uri())
    source = tmp_path / "source"
    source.write_bytes(b"x" * (40 * 2**20))
    sizes: set[int] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            sizes.update(size for key, size in store.list("").items() if key == "a")

    watcher = threading.Thread(target=watch)
    watcher.start()
    store.upload(source, "a")
    done.set()
    watcher.join()
    assert sizes <= {40 * 2**20}


@pytest.fixture
def closed_port(monkeypatch: pytest.MonkeyPatch) -> str:
    endpoint = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return endpoint


@pytest.mark.slow
@pytest.mark.parametrize("key", ["a", "snapshots/signature/step00000403-a0"])
def test_a_server_that_does_not_listen_is_unreachable_at_its_endpoint(closed_port: str, key: str) -> None:
    with pytest.raises(StoreUnreachable, match=closed_port):
        Store("s3://bucket/run").read(key)


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "value"), [("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_ACCESS_KEY_ID", "nobody")])
def test_wrong_credentials_are_denied_and_not_shown(
    s3: S3Server, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StoreDenied, match="check AWS_ACCESS_KEY_ID") as caught:
        Store(f"s3://{s3.bucket}/x").check()
    assert s3.secret_key not in str(caught.value)


@pytest.mark.slow
def test_missing_credentials_are_denied(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreDenied):
        Store(f"s3://{s3.bucket}/x").check()


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_named(s3: S3Server) -> None:
    with pytest.raises(StoreError, match="s3://no-such-bucket"):
        Store("s3://no-such-bucket/x").read("a")


@pytest.mark.parametrize("key", ["..", "a/../../b", "/etc/passwd"])
def test_a_key_that_leaves_the_store_is_refused(tmp_path: Path, key: str) -> None:
    store = Store((tmp_path / "store").as_uri())
    for act in (store.read, store.delete, store.list):
        with pytest.raises(ValueError, match="leaves the store"):
            act(key)


def test_a_snapshot_below_a_folder_with_a_space_is_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "my models" / "step 1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    store, key = split_location(folder.as_uri())
    assert store.read(f"{key}/config.json") == b"{}"


def test_a_create_that_fails_leaves_nothing_and_one_whose_folder_is_deleted_meanwhile_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            local_files.create(tmp_path / "a" / "b", b"x")
    assert list((tmp_path / "a").iterdir()) == []

    def swept(_: int) -> None:
        monkeypatch.undo()
        shutil.rmtree(tmp_path / "a")

    monkeypatch.setattr(os, "fsync", swept)
    assert local_files.create(tmp_path / "a" / "b", b"x")
    assert (tmp_path / "a" / "b").read_bytes() == b"x"

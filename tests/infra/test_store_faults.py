"""A store that is full, slow, throttled or loses connections does no damage: what is sent is whole, or absent with a reason."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import s3_objects
from infra.errors import StoreError, StoreFull, StoreStalled, StoreUnreachable
from infra.store import Store
from infra.transfer import Transfer
from tests.fakes.s3_proxy import Faults, S3Proxy, parts_of_uploads, writes
from tests.services.s3 import S3Server
from tests.services.small_disk import small_disk

pytestmark = pytest.mark.slow
LARGE = 3 * s3_objects.PART_BYTES


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    with S3Proxy(s3.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


@pytest.fixture
def store(proxy: S3Proxy, s3: S3Server) -> Store:
    return Store(f"s3://{s3.bucket}/{uuid.uuid4().hex}")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    (tmp_path / "large").write_bytes(os.urandom(2**20) * (LARGE // 2**20))
    return tmp_path / "large"


def arrived(store: Store, source: Path, target: Path) -> bool:
    store.download("a", target)
    return target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("answer", [(503, "SlowDown"), (503, "ServiceUnavailable"), (500, "InternalError")])
def test_a_burst_of_errors_passes_unnoticed(store: Store, proxy: S3Proxy, large: Path, answer: tuple[int, str]) -> None:
    proxy.faults = Faults(answers=[answer] * 3)
    store.upload(large, "a")
    assert proxy.struck == 3
    proxy.faults = Faults(answers=[answer] * 3)
    assert arrived(store, large, large.with_name("got"))
    assert store.open_uploads("") == ()


def test_connections_that_break_inside_of_parts_do_no_damage(store: Store, proxy: S3Proxy, large: Path) -> None:
    proxy.faults = Faults(strikes=parts_of_uploads, breaks=3)
    store.upload(large, "a")
    assert proxy.struck == 3
    assert arrived(store, large, large.with_name("got"))


def test_an_upload_whose_parts_never_arrive_leaves_nothing(store: Store, proxy: S3Proxy, large: Path) -> None:
    proxy.faults = Faults(strikes=parts_of_uploads, broken=True)
    with pytest.raises(StoreUnreachable):
        store.upload(large, "a")
    assert not store.exists("a")
    assert store.open_uploads("") == ()


def test_errors_that_do_not_pass_are_a_store_error_and_leave_nothing(store: Store, proxy: S3Proxy, large: Path) -> None:
    proxy.faults = Faults(strikes=parts_of_uploads, answers=[(500, "InternalError")] * 1000)
    with pytest.raises(StoreError, match="InternalError"):
        store.upload(large, "a")
    assert not store.exists("a")
    assert store.open_uploads("") == ()


def test_a_full_store_is_said_to_be_full(store: Store, proxy: S3Proxy, large: Path) -> None:
    proxy.faults = Faults(strikes=writes, full=True)
    with pytest.raises(StoreFull, match="is full"):
        store.upload(large, "a")
    proxy.mend()
    assert store.list("") == {}
    store.upload(large, "a")
    assert arrived(store, large, large.with_name("got"))


def test_a_slow_store_is_waited_for_as_long_as_bytes_move(store: Store, proxy: S3Proxy, large: Path) -> None:
    proxy.faults = Faults(strikes=parts_of_uploads, bytes_per_s=6 * 2**20)
    transfer, started = Transfer(stall_s=8.0), time.monotonic()
    store.upload(large, "a", transfer)
    assert time.monotonic() - started > 2.0
    assert transfer.n_bytes == LARGE
    assert arrived(store, large, large.with_name("got"))


def test_a_store_that_takes_nothing_any_more_is_given_up(store: Store, proxy: S3Proxy, large: Path) -> None:
    proxy.faults = Faults(strikes=parts_of_uploads, silent=True)
    with pytest.raises(StoreStalled, match="has taken nothing for"):
        store.upload(large, "a", Transfer(stall_s=2.0))
    assert store.open_uploads("") == ()
    assert not store.exists("a")


def test_a_store_that_never_answers_costs_a_bounded_time(store: Store, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_objects, "CALL_TIMEOUT_S", 2.0)
    proxy.faults = Faults(silent=True)
    for call in (lambda: store.read("a"), lambda: store.write("a", b"x"), lambda: store.list(""), lambda: store.exists("a")):
        started = time.monotonic()
        with pytest.raises(StoreUnreachable):
            call()
        assert time.monotonic() - started < 10


def test_a_local_store_that_is_full_says_so_and_keeps_nothing_of_the_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(8 * 2**20))
    with small_disk(tmp_path / "disk", 4) as disk:
        store = Store((disk / "store").as_uri())
        with pytest.raises(StoreFull, match="is full"):
            store.upload(source, "a")
        assert [path for path in disk.rglob("*") if path.is_file()] == []
        with pytest.raises(StoreFull):
            store.write("a", bytes(8 * 2**20))
        store.write("b", b"there is room for this")
        assert store.list("") == {"b": 22}

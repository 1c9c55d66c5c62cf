"""Object storage where a write is whole or absent, and a conditional create has exactly one winner; all kinds behave alike."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.errors import AlreadyExists
from infra.store import Store
from tests.fakes.s3_proxy import S3Proxy
from tests.services.s3 import S3Server

WRITERS = 16
LARGE = 35 * 2**20  # more than two parts, below which s3fs sends a file whole


@pytest.fixture(params=["file", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3", "fault proxy"))])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    if request.param == "file":
        yield Store((tmp_path / "store").as_uri())
        return
    s3: S3Server = request.getfixturevalue("s3")
    url = f"s3://{s3.bucket}/{uuid.uuid4().hex}"
    if request.param == "s3":
        yield Store(url)
        return
    with S3Proxy(s3.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield Store(url)


def together(count: int, act: Callable[[int], bool]) -> list[bool]:
    """`act` in so many threads that all start at once."""
    barrier = threading.Barrier(count)

    def run(index: int) -> bool:
        barrier.wait()
        return act(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_what_was_written_is_read(store: Store) -> None:
    store.write("a/b/c.json", b"data")
    assert store.read("a/b/c.json") == b"data"
    assert store.exists("a/b/c.json")
    store.write("a/b/c.json", b"")
    assert store.read("a/b/c.json") == b""


def test_a_range_of_bytes_is_read_and_ends_where_the_object_ends(store: Store) -> None:
    store.write("a", bytes(range(100)))
    assert store.read_range("a", 10, 20) == bytes(range(10, 20))
    assert store.read_range("a", 95, 200) == bytes(range(95, 100))
    assert store.read_range("a", 10, 10) == b""
    with pytest.raises(FileNotFoundError):
        store.read_range("no/where", 0, 1)


def test_what_is_missing_is_a_file_not_found(store: Store, tmp_path: Path) -> None:
    assert not store.exists("no/where")
    with pytest.raises(FileNotFoundError):
        store.read("no/where")
    with pytest.raises(FileNotFoundError):
        store.download("no/where", tmp_path / "got")
    assert list(tmp_path.glob("*got*")) == []


def test_a_folder_is_not_an_object(store: Store) -> None:
    store.write("folder/object", b"1")
    assert not store.exists("folder")


def test_of_sixteen_concurrent_creators_exactly_one_wins_and_its_data_stays(store: Store) -> None:
    def create(index: int) -> bool:
        try:
            store.create("race", b"%d" % index)
        except AlreadyExists:
            return False
        return True

    won = together(WRITERS, create)
    assert sum(won) == 1
    assert store.read("race") == b"%d" % won.index(True)
    assert store.list("") == {"race": len(store.read("race"))}


def test_create_never_replaces_what_was_written(store: Store) -> None:
    store.write("a", b"first")
    with pytest.raises(AlreadyExists) as caught:
        store.create("a", b"second")
    assert caught.value.key == store.url_of("a")
    assert store.read("a") == b"first"


def test_a_reader_sees_the_old_object_or_the_new_one(store: Store) -> None:
    size = 2**20 if store.is_local else 2**16
    versions = [bytes([n]) * size for n in range(4)]
    store.write("a", versions[0])
    done = threading.Event()
    torn: list[int] = []

    def read() -> None:
        while not done.is_set():
            data = store.read("a")
            if len(data) != size or len(set(data[:: size // 16])) != 1:
                torn.append(len(data))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(40):
        store.write("a", versions[n % 4])
    done.set()
    reader.join()
    assert torn == []


def test_list_gives_all_keys_below_a_folder_with_their_sizes(store: Store) -> None:
    for key, size in (("a/1", 1), ("a/b/2", 2), ("a/b/c/3", 0), ("ab/4", 4)):
        store.write(key, bytes(size))
    assert store.list("a") == {"a/1": 1, "a/b/2": 2, "a/b/c/3": 0}
    assert store.list("") == {"a/1": 1, "a/b/2": 2, "a/b/c/3": 0, "ab/4": 4}
    assert store.list("nowhere") == {}


def test_delete_takes_an_object_or_a_folder_and_nothing_beside_it(store: Store) -> None:
    for key in ("a/1", "a/b/2", "ab/3", "c"):
        store.write(key, b"x")
    store.delete("a")
    assert sorted(store.list("")) == ["ab/3", "c"]
    store.delete("c")
    assert sorted(store.list("")) == ["ab/3"]


def test_deleting_what_is_not_there_is_not_an_error(store: Store) -> None:
    store.delete("nowhere")
    store.write("a/1", b"x")
    store.delete("a")
    store.delete("a")


def test_several_may_delete_the_same_folder_at_once(store: Store) -> None:
    for n in range(60 if store.is_local else 10):
        store.write(f"a/{n}/x", b"x")

    def delete(index: int) -> bool:
        store.delete("a")
        return True

    assert together(4, delete) == [True] * 4
    assert store.list("a") == {}


def test_a_large_file_goes_up_and_comes_down_unchanged(store: Store, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    source.write_bytes(b"0123456789abcdef" * (LARGE // 16))
    store.upload(source, "big/file")
    assert store.list("big") == {"big/file": LARGE}
    store.download("big/file", target)
    assert target.read_bytes() == source.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_check_passes_and_leaves_nothing(store: Store) -> None:
    store.check()
    assert store.list("") == {}


def test_only_a_local_store_can_be_read_in_place(store: Store) -> None:
    store.write("a", b"x")
    path = store.local_path("a")
    assert (path is not None) is store.is_local
    assert path is None or path.read_bytes() == b"x"


def test_a_listing_misses_nothing_while_others_write_beside_it(store: Store) -> None:
    for n in range(20):
        store.write(f"a/{n:02d}", b"x")
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            store.write("a/00", b"x")

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    listed = [store.list("a") for _ in range(100 if store.is_local else 10)]
    done.set()
    for writer in writers:
        writer.join()
    assert {tuple(found) for found in listed} == {tuple(f"a/{n:02d}" for n in range(20))}


def test_a_link_that_leads_to_itself_is_a_place_like_another(tmp_path: Path) -> None:
    store, loop = Store((tmp_path / "store").as_uri()), tmp_path / "loop"
    loop.symlink_to(loop)
    assert store.key_of(str(loop)) is None
    assert store.key_of(str(tmp_path / "store" / "runs" / "a")) == "runs/a"

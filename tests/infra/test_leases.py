"""A snapshot that somebody holds is never deleted; one that nobody holds any more is, in whatever order the steps fall."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra import leases, reclaim
from infra.errors import SnapshotMissing
from infra.model import EvalPoint
from infra.retention import retire_snapshots
from infra.snapshot import MANIFEST, SNAPSHOTS, new_prefix
from infra.store import Store
from tests.services.s3 import S3Server
from tests.services.waiting import until

POINT = EvalPoint(run="run", step=10, attempt=1)
PREFIX = f"{SNAPSHOTS}/run/step00000010-a1-0badcafe"


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "file":
        return Store((tmp_path / "store").as_uri())
    server: S3Server = request.getfixturevalue("s3")
    return Store(f"s3://{server.bucket}/leases-{time.time_ns()}")


def put(store: Store, prefix: str = PREFIX, *, manifest: bool = True) -> None:
    store.write(f"{prefix}/model.safetensors", b"weights")
    if manifest:
        store.write(f"{prefix}/{MANIFEST}", b"{}")


def exported(store: Store, prefix: str = PREFIX, point: EvalPoint = POINT, ttl_s: float = 60.0) -> leases.Holder:
    holder = leases.acquire(store, prefix, owner=leases.owner_of(point), purpose="export", ttl_s=ttl_s)
    put(store, prefix)
    return holder


def test_what_is_held_is_not_deleted_and_what_is_released_is(store: Store) -> None:
    exporter = exported(store)
    reader = leases.acquire(store, PREFIX, owner="fleet", purpose="read")
    assert not leases.delete_unless_held(store, PREFIX)
    assert not leases.delete_unless_held(store, PREFIX, owner=exporter.owner)
    leases.release(store, PREFIX, reader)
    assert not leases.delete_unless_held(store, PREFIX)
    assert leases.delete_unless_held(store, PREFIX, owner=exporter.owner)
    assert store.list("") == {}


def test_a_holder_that_stops_renewing_expires_by_the_stores_clock(store: Store) -> None:
    holder = exported(store, ttl_s=3.0)
    leases.renew(store, PREFIX, holder)
    assert leases.live_holders(store, PREFIX) == [holder]
    time.sleep(4.2)
    assert leases.live_holders(store, PREFIX) == []
    assert leases.delete_unless_held(store, PREFIX)
    assert store.list("") == {}


def test_a_holder_that_is_kept_alive_outlives_its_ttl(tmp_path: Path) -> None:
    store = Store(tmp_path.as_uri())
    holder = exported(store, ttl_s=4.0)
    [file] = tmp_path.glob(f"{leases.LEASES}/**/holders/*.json")
    with leases.kept_alive(store, PREFIX, holder):
        for _ in range(2):
            age(file, 3.0)
            until(lambda: time.time() - file.stat().st_mtime < 2.5)
            assert leases.live_holders(store, PREFIX) == [holder]
    age(file, 5.0)
    assert leases.live_holders(store, PREFIX) == []


def age(file: Path, by_s: float) -> None:
    os.utime(file, (time.time() - by_s,) * 2)


def test_a_kept_snapshot_never_expires(tmp_path: Path) -> None:
    store = Store(tmp_path.as_uri())
    put(store)
    leases.acquire(store, PREFIX, owner="retention", purpose="keep", ttl_s=0.0)
    assert not leases.delete_unless_held(store, PREFIX)


def test_a_reader_of_an_unfinished_or_deleted_snapshot_is_refused_and_leaves_no_lease(store: Store) -> None:
    put(store, manifest=False)
    with pytest.raises(SnapshotMissing, match=MANIFEST):
        leases.acquire(store, PREFIX, owner="fleet", purpose="read")
    assert leases.known(store) == []


def test_an_interrupted_deletion_is_finished_by_the_next(tmp_path: Path) -> None:
    class Dies(Store):
        """Ends its process, so to speak, at the n-th deletion."""

        left = 0

        def delete(self, prefix: str) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            super().delete(prefix)

    for survived in range(3):
        dying, store = Dies((tmp_path / str(survived)).as_uri()), Store((tmp_path / str(survived)).as_uri())
        owner = exported(store).owner
        dying.left = survived
        with pytest.raises(KeyboardInterrupt):
            leases.delete_unless_held(dying, PREFIX, owner=owner)
        assert leases.known(store) == [PREFIX]  # the sweep finds it, though the manifest may be gone
        assert leases.delete_unless_held(store, PREFIX, owner=owner)
        assert store.list("") == {}


def test_a_point_deletes_all_it_owns_and_nothing_else(store: Store) -> None:
    others = [EvalPoint(run="run", step=10, attempt=n) for n in (0, 10)]
    others += [EvalPoint(run="run", step=100), EvalPoint(run="run", step=1)]
    others += [EvalPoint(run="run2", step=10, attempt=1), EvalPoint(run="ru", step=10, attempt=1)]
    kept = {new_prefix(other): other for other in others}
    for prefix, other in kept.items():
        exported(store, prefix, other)
    exported(store)
    second = new_prefix(POINT)
    leases.acquire(store, second, owner=leases.owner_of(POINT), purpose="export")
    put(store, second, manifest=False)
    assert retire_snapshots(store, POINT, 0) == len(b"weights") * 2 + len(b"{}")
    assert leases.known(store) == sorted(kept)
    assert retire_snapshots(store, POINT, 0) == 0


def test_what_has_no_lease_record_is_not_ours_and_is_left_alone(store: Store) -> None:
    put(store)
    assert leases.known(store) == []
    assert retire_snapshots(store, POINT, 0) == 0
    assert store.exists(f"{PREFIX}/{MANIFEST}")


def test_what_strays_among_the_lease_records_stands_for_no_snapshot_and_stops_no_sweep(store: Store, tmp_path: Path) -> None:
    holder, name = exported(store), PREFIX.rpartition("/")[2]
    strays = ["leases/.DS_Store", "leases/foo/.DS_Store", "leases/bar", "leases/run/README", f"leases/run/{name}.bak/made"]
    strays += [f"leases/.run/{name}/made", "leases/run/users-own/made", f"leases/run/{name[:-1]}0/notes"]
    foreign = [f"snapshots/{where}/model.safetensors" for where in ("foo", "bar/users-own", "run", "run/users-own")]
    for key in (*strays, *foreign):
        store.write(key, b"x")
    assert leases.known(store) == leases.known(store, "run") == [PREFIX]
    assert leases.known(store, "bar") == []
    [found] = reclaim.sweep(store, tmp_path / "staging")
    assert found.holders == (f"{holder.owner} (export)",)
    assert leases.delete_unless_held(store, PREFIX, owner=holder.owner)
    assert reclaim.sweep(store, tmp_path / "staging") == []
    assert set(store.list("")) == {*strays, *foreign}


class Turns:
    """Lets named threads do one store operation at a time, in a given order of names."""

    def __init__(self, order: Sequence[str]) -> None:
        self.order, self.at, self.finished = list(order), 0, set[str]()
        self.changed = threading.Condition()

    def take(self, name: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self._next() in (name, None), timeout=10)

    def done(self) -> None:
        with self.changed:
            self.at += 1
            self.changed.notify_all()

    def finish(self, name: str) -> None:
        with self.changed:
            self.finished.add(name)
            self.changed.notify_all()

    def _next(self) -> str | None:
        while self.at < len(self.order) and self.order[self.at] in self.finished:
            self.at += 1
        return self.order[self.at] if self.at < len(self.order) else None


class InTurns(Store):
    """A store each of whose operations waits for this thread's turn."""

    turns: Turns
    name: str

    def __getattribute__(self, attribute: str) -> Any:
        value = super().__getattribute__(attribute)
        if attribute not in ("write", "read", "list", "exists", "delete", "written", "clock"):
            return value

        def in_turn(*arguments: Any) -> Any:
            if getattr(_inside, "depth", 0):
                return value(*arguments)
            self.turns.take(self.name)
            _inside.depth = 1
            try:
                return value(*arguments)
            finally:
                _inside.depth = 0
                self.turns.done()

        return in_turn


_inside = threading.local()


def play(url: str, order: Sequence[str], parts: dict[str, Callable[[Store], object]]) -> dict[str, object]:
    """Runs the parts, each in a thread, their store operations in `order`; gives what each returned or raised."""
    turns, outcomes = Turns(order), dict[str, object]()

    def run(name: str, part: Callable[[Store], object]) -> None:
        store = InTurns(url)
        store.turns, store.name = turns, name
        try:
            outcomes[name] = part(store)
        except SnapshotMissing as error:
            outcomes[name] = error
        finally:
            turns.finish(name)

    threads = [threading.Thread(target=run, args=item) for item in parts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return outcomes


def read(store: Store) -> object:
    return leases.acquire(store, PREFIX, owner="fleet", purpose="read")


def sweep(store: Store) -> object:
    return leases.delete_unless_held(store, PREFIX)


def judge(store: Store, outcomes: dict[str, object]) -> None:
    """A reader that was let in finds everything; and if it was, no sweep says that it deleted."""
    let_in = isinstance(outcomes["reader"], leases.Holder)
    whole = store.exists(f"{PREFIX}/{MANIFEST}") and store.exists(f"{PREFIX}/model.safetensors")
    deleted = any(outcome is True for name, outcome in outcomes.items() if name != "reader")
    if let_in:
        assert whole
        assert not deleted
    elif not deleted:
        assert whole


def orders(first: str, count: int, second: str, other: int) -> Iterator[list[str]]:
    for places in itertools.combinations(range(count + other), count):
        yield [first if index in places else second for index in range(count + other)]


def test_no_interleaving_of_a_reader_and_a_sweep_loses_a_snapshot_that_is_held(tmp_path: Path) -> None:
    """All of them: a reader takes three operations, a sweep seven."""
    for number, order in enumerate(orders("reader", 3, "sweep", 7)):
        url = (tmp_path / str(number)).as_uri()
        put(Store(url))
        outcomes = play(url, order, {"reader": read, "sweep": sweep})
        judge(Store(url), outcomes)
    assert number == 119


@settings(max_examples=60, deadline=None)
@given(order=st.lists(st.sampled_from(["reader", "one", "two"]), min_size=4, max_size=20))
def test_two_sweepers_and_a_reader_at_once_are_harmless(order: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    url = tmp_path_factory.mktemp("store").as_uri()
    put(Store(url))
    outcomes = play(url, order, {"reader": read, "one": sweep, "two": sweep})
    judge(Store(url), outcomes)


def test_a_record_that_was_cut_short_holds_for_a_while_and_stops_no_sweep(tmp_path: Path) -> None:
    store = Store(tmp_path.as_uri())
    put(store)
    broken = f"leases/run/{PREFIX.rpartition('/')[2]}/holders/torn.json"
    store.write(broken, b"")
    assert [holder.owner for holder in leases.live_holders(store, PREFIX)] == ["unreadable record"]
    os.utime(tmp_path / broken, (time.time() - 2 * leases.TTL_S,) * 2)
    assert leases.live_holders(store, PREFIX) == []
    assert leases.delete_unless_held(store, PREFIX)


def test_a_sweep_that_died_before_it_looked_bars_no_reader_for_ever(tmp_path: Path) -> None:
    store = Store(tmp_path.as_uri())
    exported(store)
    mark = f"leases/run/{PREFIX.rpartition('/')[2]}/deletions/dead"
    store.write(mark, b"{}")
    leases.forget_stale_deletions(store, PREFIX)
    with pytest.raises(SnapshotMissing, match="is being deleted"):
        read(store)
    os.utime(tmp_path / mark, (time.time() - 2 * leases.TTL_S,) * 2)
    leases.forget_stale_deletions(store, PREFIX)
    assert isinstance(read(store), leases.Holder)

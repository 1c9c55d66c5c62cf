"""Of the snapshots that a run has retired the newest `keep` stay, and only whole ones; the others go at once, unless held."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra import leases
from infra.model import EvalPoint
from infra.reclaim import sweep
from infra.retention import kept, release_kept, retire_snapshots
from infra.snapshot import MANIFEST, new_prefix
from infra.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


def point(step: int, attempt: int = 0, run: str = "run") -> EvalPoint:
    return EvalPoint(run=run, step=step, attempt=attempt)


def exported(store: Store, of: EvalPoint, *, whole: bool = True, ttl_s: float = 60.0) -> str:
    prefix = new_prefix(of)
    leases.acquire(store, prefix, owner=leases.owner_of(of), purpose="export", ttl_s=ttl_s)
    store.write(f"{prefix}/model.safetensors", b"weights")
    if whole:
        store.write(f"{prefix}/{MANIFEST}", b"{}")
    return prefix


def test_by_default_nothing_is_kept(store: Store) -> None:
    exported(store, point(10))
    assert retire_snapshots(store, point(10), 0) == len(b"weights{}")
    assert store.list("") == {}


def test_the_newest_are_kept_and_an_older_one_goes_when_a_newer_one_is_retired(store: Store) -> None:
    prefixes = []
    for step in (20, 100, 3):  # retired in another order than they were made in
        prefixes.append(exported(store, point(step)))
        retire_snapshots(store, point(step), 2)
    assert kept(store, "run") == sorted(prefixes[:2])
    assert store.list(prefixes[2]) == {}


def test_attempts_of_one_step_count_apart(store: Store) -> None:
    first, second = exported(store, point(10)), exported(store, point(10, 1))
    retire_snapshots(store, point(10), 1)
    retire_snapshots(store, point(10, 1), 1)
    assert kept(store, "run") == [second]
    assert store.list(first) == {}


def test_the_tenth_attempt_is_newer_than_the_ninth_and_an_earlier_step_of_it_than_any_of_another(store: Store) -> None:
    made: dict[str, tuple[int, int]] = {}
    seen = []
    for step, attempt in ((10, 9), (10, 10), (5, 11), (3, 11), (100_000_000, 11)):
        made[exported(store, point(step, attempt))] = (attempt, step)
        retire_snapshots(store, point(step, attempt), 2)
        seen.append([made[prefix] for prefix in kept(store, "run")])
    assert seen[1:3] == [[(9, 10), (10, 10)], [(10, 10), (11, 5)]]
    assert seen[3:] == [[(11, 3), (11, 5)], [(11, 5), (11, 100_000_000)]]


def test_what_is_kept_outlives_every_sweep(store: Store, tmp_path: Path) -> None:
    prefix = exported(store, point(10), ttl_s=0.01)
    retire_snapshots(store, point(10), 1)
    sweep(store, tmp_path / "staging")
    assert store.exists(f"{prefix}/{MANIFEST}")


def test_an_unfinished_export_is_never_kept(store: Store) -> None:
    exported(store, point(10), whole=False)
    retire_snapshots(store, point(10), 5)
    assert store.list("") == {}


def test_retiring_twice_keeps_once(store: Store) -> None:
    exported(store, point(10))
    retire_snapshots(store, point(10), 1)
    retire_snapshots(store, point(10), 1)
    assert [key for key in store.list("leases") if "/holders/" in key][1:] == []
    assert release_kept(store, "run") == len(b"weights{}")
    assert store.list("") == {}


def test_with_keep_lowered_the_next_retirement_frees_the_rest(store: Store) -> None:
    for step in (1, 2, 3):
        exported(store, point(step))
        retire_snapshots(store, point(step), 3)
    exported(store, point(4))
    retire_snapshots(store, point(4), 0)
    assert store.list("") == {}


def test_a_kept_snapshot_that_is_being_read_goes_after_its_reader(store: Store, tmp_path: Path) -> None:
    prefix = exported(store, point(10))
    retire_snapshots(store, point(10), 1)
    reader = leases.acquire(store, prefix, owner="another evaluation", purpose="read")
    assert release_kept(store, "run") == 0
    assert store.exists(f"{prefix}/{MANIFEST}")
    leases.release(store, prefix, reader)
    sweep(store, tmp_path / "staging")
    assert store.list("") == {}


def test_other_runs_are_left_alone(store: Store) -> None:
    other = exported(store, point(10, run="run2"))
    retire_snapshots(store, point(10, run="run2"), 1)
    exported(store, point(11))
    retire_snapshots(store, point(11), 0)
    assert kept(store, "run2") == [other]

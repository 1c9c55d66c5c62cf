"""Of the snapshots that a run has retired the newest `keep` stay, and only whole ones; the others go at once, unless held."""

from __future__ import annotations

import os
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


def begun(store: Store, at: float, step: int, attempt: int = 0) -> str:
    """Exported and retired; its export began `at` that time of the store's clock."""
    prefix = exported(store, point(step, attempt))
    made = store.local_path(f"{leases.home_of(prefix)}/made")
    assert made is not None
    os.utime(made, (at, at))
    return prefix


def test_the_newest_are_kept_and_an_older_one_goes_when_a_newer_one_is_retired(store: Store) -> None:
    prefixes = {step: begun(store, at, step) for at, step in enumerate((3, 20, 100))}
    for step in (20, 100, 3):  # points end in another order than they begin in
        retire_snapshots(store, point(step), 2)
    assert kept(store, "run") == [prefixes[20], prefixes[100]]
    assert store.list(prefixes[3]) == {}


def test_who_resumes_at_an_earlier_step_keeps_what_is_measured_from_then_on(store: Store) -> None:
    """Also after an attempt that the store could not count, which has its number from the clock."""
    begun(store, 1, 100, 1_700_000_000)
    newer = begun(store, 2, 50, 2)
    for step, attempt in ((100, 1_700_000_000), (50, 2)):
        retire_snapshots(store, point(step, attempt), 1)
    assert kept(store, "run") == [newer]


def test_attempts_of_one_step_count_apart(store: Store) -> None:
    first, second = exported(store, point(10)), exported(store, point(10, 1))
    retire_snapshots(store, point(10), 1)
    retire_snapshots(store, point(10, 1), 1)
    assert kept(store, "run") == [second]
    assert store.list(first) == {}


def test_of_one_second_attempts_and_steps_count_as_numbers(store: Store) -> None:
    order = ((10, 9), (9, 10), (10, 10), (100_000_000, 10))
    prefixes = [begun(store, 7.0, step, attempt) for step, attempt in order]
    for step, attempt in reversed(order):
        retire_snapshots(store, point(step, attempt), 4)
    assert kept(store, "run") == prefixes


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

"""A checkpoint that is held is said to be held, until its hold is released or has run out, and nothing else is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from infra import holds
from infra.errors import StoreError
from infra.store import Store
from tests.services.s3 import S3Server
from trainer_integration.holds import deletable, is_held, prune_after_save, unheld


def folders(root: Path, *names: str) -> list[Path]:
    made = [root / name for name in names]
    for folder in made:
        folder.mkdir(parents=True)
    return made


def test_a_hold_lasts_until_it_is_released(tmp_path: Path) -> None:
    one, other = folders(tmp_path, "step_1", "step_10")
    assert not is_held(one)
    assert list(tmp_path.glob(".*")) == []  # asking leaves nothing
    holds.hold(one, "a", by="evaluation", ttl_s=60)
    holds.hold(one, "b", by="another", ttl_s=60)
    assert is_held(one)
    assert is_held(str(one))
    assert is_held(one.as_uri())
    assert is_held(one / "hf")  # N/hf goes with N
    assert not is_held(other)
    holds.release(one, "a")
    assert is_held(one)
    holds.release(one, "b")
    assert not is_held(one)
    assert list(tmp_path.glob(".*")) == []


def test_a_hold_runs_out_by_the_storages_own_clock_and_says_until_when(tmp_path: Path) -> None:
    (one,) = folders(tmp_path, "step_1")
    holds.hold(one, "a", by="evaluation", ttl_s=60)
    [record] = holds.live_holds(one)
    assert record.by == "evaluation"
    assert record.until > time.strftime("%Y-%m-%dT%H:%M", time.gmtime())
    (file,) = (tmp_path / ".pinpoint-holds" / "step_1").iterdir()
    os.utime(file, (time.time() - 61, time.time() - 61))
    assert not is_held(one)
    holds.hold(one, "a", by="evaluation", ttl_s=60)  # renewed
    assert is_held(one)


def test_a_record_that_was_cut_short_holds_and_a_storage_that_fails_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = folders(tmp_path, "step_1")
    holds.hold(one, "a", by="evaluation", ttl_s=60)
    (file,) = (tmp_path / ".pinpoint-holds" / "step_1").iterdir()
    file.write_bytes(b"{")
    assert is_held(one)
    holds.release(one, "a")

    def fails(self: Store, prefix: str) -> dict[str, float]:
        raise StoreError("down")

    monkeypatch.setattr(Store, "written", fails)
    assert is_held(one)


@pytest.mark.parametrize("name", ["/tmp/\0x", "\ud800"])
def test_a_name_that_no_storage_can_have_is_kept_and_nothing_is_raised(name: str) -> None:
    assert is_held(name)


def test_a_folder_that_fails_with_an_error_of_the_system_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = folders(tmp_path, "step_1")

    def fails(self: Store, prefix: str) -> dict[str, float]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Store, "written", fails)
    assert is_held(one)
    assert unheld([one]) == []


def test_what_killed_holders_left_is_tidied_by_a_later_one(tmp_path: Path) -> None:
    gone, one = folders(tmp_path, "step_1", "step_2")
    holds.hold(gone, "a", by="evaluation", ttl_s=60)
    (file,) = (tmp_path / ".pinpoint-holds" / "step_1").iterdir()
    long_ago = time.time() - holds.LITTER_S - 60
    os.utime(file, (long_ago, long_ago))
    holds.hold(one, "b", by="evaluation", ttl_s=60)
    assert [path.name for path in (tmp_path / ".pinpoint-holds").iterdir()] == ["step_2"]


def test_keep_last_n_spares_what_is_held_and_protected(tmp_path: Path) -> None:
    made = folders(tmp_path, "step_1", "step_2", "step_3", "step_4")
    holds.hold(made[1], "a", by="evaluation", ttl_s=60)
    assert deletable(made, 2) == [made[0]]
    assert deletable(made, 1, protected=[made[0]]) == [made[2]]
    assert deletable(made, 10) == []
    assert unheld(made) == [made[0], *made[2:]]


def test_after_a_megatron_save_old_iterations_go_but_not_held_ones_nor_the_tracked(tmp_path: Path) -> None:
    made = folders(tmp_path, *(f"iter_{n:07d}" for n in (100, 200, 300, 400, 500)), "tensorboard")
    holds.hold(made[1], "a", by="evaluation", ttl_s=60)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    assert prune_after_save(tmp_path, keep=2) == [made[2]]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("500")
    assert prune_after_save(tmp_path, keep=2) == [made[0]]
    holds.release(made[1], "a")
    assert prune_after_save(tmp_path, keep=2) == [made[1]]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and not path.name.startswith(".")) == [
        "iter_0000400",
        "iter_0000500",
        "tensorboard",
    ]
    assert prune_after_save(tmp_path / "none", keep=2) == []


def test_nothing_but_megatrons_own_folders_is_ever_deleted(tmp_path: Path) -> None:
    names = ("step_1", "checkpoint-7", "global_step_3", "iter_0000001.old", "iter-2", "iter3")
    others = folders(tmp_path, *names)
    made = folders(tmp_path, "iter_0000100", "iter_0000200", "iter_0000300")
    assert prune_after_save(tmp_path, keep=1) == made[:2]
    assert all(folder.is_dir() for folder in others)


@pytest.mark.parametrize("tracker", [b"\xff\xfe", b"", b"3x"])
def test_a_tracker_file_that_can_not_be_read_has_nothing_deleted_and_nothing_raised(tmp_path: Path, tracker: bytes) -> None:
    folders(tmp_path, "iter_0000100", "iter_0000200", "iter_0000300")
    (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(tracker)
    assert prune_after_save(tmp_path, keep=1) == []
    assert prune_after_save(f"{tmp_path}\0", keep=1) == []
    (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(b"release\n")
    assert len(prune_after_save(tmp_path, keep=1)) == 2


@pytest.mark.slow
def test_a_checkpoint_in_object_storage_is_held_alike(s3: S3Server) -> None:
    checkpoint = f"s3://{s3.bucket}/holds-{time.time_ns()}/step_1"
    assert not is_held(checkpoint)
    holds.hold(checkpoint, "a", by="evaluation", ttl_s=60)
    assert is_held(checkpoint)
    assert is_held(f"{checkpoint}/hf")
    holds.release(checkpoint, "a")
    assert not is_held(checkpoint)

"""Saved checkpoints are found in every usual layout, and taken only when their trainer has finished with them."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from infra.errors import ConfigError, FileDamaged
from infra.model import Care, Manifest
from infra.saved.identity import checkpoint_digest
from infra.saved.layouts import run_of
from infra.saved.scan import root_url, scan
from infra.saved.settled import PATIENCE, look
from infra.snapshot import describe, validate
from infra.store import Store
from infra.validation.readers import LocalFolder
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import POINT
from tests.services.s3 import S3Server

CARE = Care(settle_s=60)


def found(root: Path, pattern: str | None = None) -> dict[str, int]:
    return {saved.name: saved.step for saved in scan([str(root)], pattern)}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_120", 120),
        ("step120", 120),
        ("step-7", 7),
        ("iter_0000300", 300),
        ("checkpoint-500", 500),
        ("ckpt-9", 9),
        ("global_step_40", 40),
        ("global_step40", 40),
        ("40/hf", 40),
        ("step_8/hf", 8),
        ("global_step_5/actor/huggingface", 5),
    ],
)
def test_every_usual_layout_is_known(tmp_path: Path, name: str, step: int) -> None:
    make_checkpoint(tmp_path / name)
    assert found(tmp_path) == {name: step}


def test_what_is_no_checkpoint_of_this_root_is_left_alone(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step_2")
    for other in ("checkpoint-10.tmp", "tmp-checkpoint-10", "best", "40", "40/optimizer", "step_2/critic", ".trash/step_3"):
        if other != "40":
            make_checkpoint(tmp_path / other)
    (tmp_path / "step_4").mkdir()  # nothing is in it yet
    (tmp_path / "latest").symlink_to(tmp_path / "step_2")
    assert found(tmp_path) == {"step_2": 2}


def test_a_folder_with_weights_is_the_checkpoint_and_not_what_lies_in_it(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step_2")
    make_checkpoint(tmp_path / "step_2" / "hf")
    assert found(tmp_path) == {"step_2": 2}


def test_a_pattern_takes_the_place_of_the_usual_layouts(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "a" / "epoch3-model")
    make_checkpoint(tmp_path / "step_2")
    assert found(tmp_path, r"[ab]/epoch(\d+)-model") == {"a/epoch3-model": 3}
    assert found(tmp_path, r"(a)/epoch(?P<step>\d+)-model") == {"a/epoch3-model": 3}


def test_roots_are_named_by_path_or_url_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "with space"
    make_checkpoint(root / "step_2")
    make_checkpoint(root / "100% done" / "step_3")
    both = scan([str(root), root.as_uri()], r".*step_(\d+)")
    assert [saved.path for saved in both] == [str(root / "step_2"), str(root / "100% done" / "step_3")]
    assert [saved.location for saved in both] == [saved.reader.folder.as_uri() for saved in both]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="is no folder"):
        scan([str(tmp_path / "none")])
    with pytest.raises(ConfigError, match="s3://"):
        root_url("https://host/x")


def test_what_a_retention_deletes_is_known_of_each_checkpoint(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "40" / "hf")
    [saved] = scan([str(tmp_path)])
    assert (saved.name, saved.kept) == ("40/hf", "40")


@pytest.mark.parametrize(
    ("root", "run"),
    [
        ("file:///data/my-run", "my-run"),
        ("file:///data/my-run/checkpoints", "my-run"),
        ("s3://bucket/run 7/hf", "run-7"),
        ("file:///data/my%20run", "my-run"),
        ("file:///ckpts", "ckpts"),
    ],
)
def test_the_run_is_named_after_the_root(root: str, run: str) -> None:
    assert run_of(root) == run


def test_a_checkpoint_is_taken_when_nothing_has_changed_for_the_settle_time(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step_2")
    [saved] = scan([str(tmp_path)])
    now = time.time()
    waiting = look(saved, CARE, now)
    assert (waiting.settled, waiting.files != ()) == ("", False)
    assert "60 s are needed" in waiting.waits
    assert look(saved, CARE, now + 59).settled == ""
    taken = look(saved, CARE, now + 61)
    assert taken.settled == "unchanged"
    assert sorted(taken.files) == sorted(validate(tmp_path / "step_2"))


def test_a_copy_with_old_times_is_not_taken_for_settled(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "made")
    for file in (tmp_path / "made").iterdir():
        os.utime(file, (1e9, 1e9))
    shutil.copytree(tmp_path / "made", tmp_path / "step_2")  # as `cp -p` and `rsync -a` do, with the times of the original
    [saved] = scan([str(tmp_path)])
    assert look(saved, CARE, time.time()).settled == ""


@pytest.mark.parametrize("marker", ["COMPLETE", "_SUCCESS", "trainer_state.json", "my-own"])
def test_a_marker_says_at_once_that_it_is_complete(tmp_path: Path, marker: str) -> None:
    (make_checkpoint(tmp_path / "step_2") / marker).write_text("")
    [saved] = scan([str(tmp_path)])
    care = Care(settle_s=60, markers=(marker,))
    assert look(saved, care, time.time()).settled == "marker"


def test_a_manifest_says_so_if_every_file_that_it_names_is_there(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "step_2")
    manifest = describe(folder, validate(folder), POINT)
    (folder / "manifest.json").write_bytes(TypeAdapter(Manifest).dump_json(manifest))
    [saved] = scan([str(tmp_path)])
    assert look(saved, CARE, time.time()).settled == "manifest"
    longer = replace(manifest.files["tokenizer.json"], size=10**6)
    lying = replace(manifest, files={**manifest.files, "tokenizer.json": longer})
    (folder / "manifest.json").write_bytes(TypeAdapter(Manifest).dump_json(lying))
    assert look(saved, CARE, time.time()).settled == ""


def test_an_incomplete_one_may_still_be_written_and_is_taken_for_invalid_only_much_later(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "step_2", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    [saved] = scan([str(tmp_path)])
    now = time.time()
    assert look(saved, CARE, now + 61).settled == ""
    late = look(saved, CARE, now + 60 * PATIENCE + 1)
    assert (late.settled, late.files) == ("invalid", ())
    assert "model-00002-of-00002.safetensors" in late.fault


def test_one_that_is_deleted_meanwhile_waits_for_nothing(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step_2")
    [saved] = scan([str(tmp_path)])
    shutil.rmtree(tmp_path / "step_2")
    assert "does not exist" in look(saved, CARE, time.time()).waits


def test_one_that_is_emptied_by_its_deletion_waits_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step_2")
    [saved] = scan([str(tmp_path)])
    for file in (tmp_path / "step_2").iterdir():
        file.unlink()  # rmtree is between its last unlink and its rmdir
    standing = look(saved, Care(settle_s=0), time.time())
    assert (standing.settled, "no file that can be read" in standing.waits) == ("", True)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), FileDamaged("may not be read", subject="step_2")])
def test_one_that_may_not_be_entered_waits_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    make_checkpoint(tmp_path / "step_2")
    [saved] = scan([str(tmp_path)])

    def refused(self: LocalFolder) -> None:
        raise error  # as to any user but root, who may enter everything

    monkeypatch.setattr(LocalFolder, "entries", refused)
    standing = look(saved, CARE, time.time())
    assert standing.settled == ""
    assert re.search(r"Permission denied|may not be read", standing.waits)


@pytest.mark.parametrize("mark", ["COMPLETE", "manifest.json"])
def test_what_a_former_save_left_says_nothing_of_the_one_that_is_written_over_it(tmp_path: Path, mark: str) -> None:
    folder = make_checkpoint(tmp_path / "step_2")
    manifest = describe(folder, validate(folder), POINT)
    (folder / mark).write_bytes(TypeAdapter(Manifest).dump_json(manifest))
    [saved] = scan([str(tmp_path)])
    assert look(saved, CARE, time.time()).settled in ("marker", "manifest")
    later(folder / mark, folder / "model.safetensors")
    assert look(saved, CARE, time.time()).settled == ""
    later(folder / "model.safetensors", folder / mark)  # the new save has ended
    assert look(saved, CARE, time.time()).settled in ("marker", "manifest")


def later(before: Path, after: Path) -> None:
    """Writes `after` again until its inode has a later time than that of `before`, on however coarse a clock."""
    data, deadline = after.read_bytes(), time.monotonic() + 5
    while after.stat().st_ctime <= before.stat().st_ctime:
        assert time.monotonic() < deadline
        after.write_bytes(data)


def test_a_marker_beside_half_a_checkpoint_does_not_make_it_complete(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "step_2")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (folder / "COMPLETE").write_text("")
    [saved] = scan([str(tmp_path)])
    assert look(saved, CARE, time.time()).settled == ""
    assert look(saved, CARE, time.time() + 60 * PATIENCE + 1).settled == "invalid"


def test_a_link_to_weights_that_are_not_there_is_invalid_after_its_time_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "root" / "step_2")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "nothing")
    [saved] = scan([str(tmp_path / "root")])
    standing = look(saved, Care(settle_s=0), time.time())
    assert (standing.settled, "leaves the folder" in standing.fault) == ("invalid", True)
    store = Store((tmp_path / "store").as_uri())
    first = checkpoint_digest(store, saved, standing, read=True)
    (folder / "model.safetensors").unlink()
    assert checkpoint_digest(store, saved, standing, read=True) not in (None, first)


def test_a_clock_that_is_behind_the_files_takes_nothing_whatever_the_settle_time(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step_2")
    [saved] = scan([str(tmp_path)])
    behind = look(saved, Care(settle_s=0), time.time() - 3600)
    assert (behind.settled, "changed 0 s ago" in behind.waits) == ("", True)


def test_links_to_folders_are_followed_and_none_leads_in_a_circle(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    make_checkpoint(root / "step_1")
    make_checkpoint(elsewhere / "saved" / "hf")
    make_checkpoint(elsewhere / "far" / "actor" / "huggingface" / "more" / "step_9")
    (root / "step_2").symlink_to(elsewhere / "saved")
    (root / "step_3").symlink_to(root)
    (root / "step_4").symlink_to(tmp_path / "nothing")
    (root / "far").symlink_to(elsewhere / "far")
    assert found(root) == {"step_1": 1, "step_2/hf": 2}
    assert found(root, r".*step_(\d+)(?:/hf)?") == {"step_1": 1, "step_2/hf": 2}


def test_a_checkpoint_is_found_at_any_depth_and_in_no_hidden_folder(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "a" / "b" / "c" / "d" / "e" / "step_9")
    make_checkpoint(tmp_path / "a" / ".trash" / "step_3")
    make_checkpoint(tmp_path / ".step_4" / "step_4")
    assert found(tmp_path, r".*step_(\d+)") == {"a/b/c/d/e/step_9": 9}


def test_a_folder_whose_name_is_no_text_is_passed_over(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step_1")
    (made := make_checkpoint(tmp_path / "made")).rename(made.with_name(os.fsdecode(b"step_7\xff")))
    assert found(tmp_path, r"step_(\d+).*") == {"step_1": 1}


@pytest.mark.slow
def test_hidden_folders_are_passed_over_in_object_storage_too(tmp_path: Path, s3: S3Server) -> None:
    url = f"s3://{s3.bucket}/hidden-{time.time_ns()}"
    for name in ("a/b/c/d/e/step_9", "a/.trash/step_3"):
        for file in make_checkpoint(tmp_path / name).iterdir():
            Store(url).upload(file, f"{name}/{file.name}")
    assert {saved.name for saved in scan([url], r".*step_(\d+)")} == {"a/b/c/d/e/step_9"}


def test_a_root_that_may_not_be_read_is_refused_and_a_folder_below_it_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_checkpoint(tmp_path / "step_1")
    make_checkpoint(tmp_path / "step_2")
    closed: set[Path] = set()

    def opened(listing: Callable[[Path], Any]) -> Callable[[Path], Any]:  # as for any user but root
        def listed(folder: Path) -> Any:
            if folder in closed:
                raise PermissionError(13, "Permission denied", str(folder))
            return listing(folder)

        return listed

    monkeypatch.setattr(os, "scandir", opened(os.scandir))
    monkeypatch.setattr(os, "listdir", opened(os.listdir))
    closed.add(tmp_path / "step_2")
    assert found(tmp_path) == {"step_1": 1}
    assert "step_2 can't be looked through" in caplog.text
    closed.add(tmp_path)
    with pytest.raises(ConfigError, match="Permission denied; let this user read it"):
        scan([str(tmp_path)])

"""Saved checkpoints are found in every usual layout, and taken only when their trainer has finished with them."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from infra.errors import ConfigError
from infra.model import Care
from infra.saved.layouts import run_of
from infra.saved.scan import root_url, scan
from infra.saved.settled import PATIENCE, look
from infra.snapshot import describe, validate
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import POINT

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
    from pydantic import TypeAdapter

    from infra.model import Manifest

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

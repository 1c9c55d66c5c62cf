"""A snapshot exists if and only if its manifest does, and the manifest accounts for every byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.errors import AlreadyExists, SnapshotInvalid, SnapshotMissing
from infra.model import EvalPoint, Manifest
from infra.snapshot import (
    MANIFEST,
    describe,
    new_prefix,
    read_manifest,
    validate,
    write_manifest,
)
from infra.store import Store
from tests.fakes.engine import digests
from tests.infra.checkpoints import NAMES, make_checkpoint, tensors
from tests.infra.examples import POINT
from tests.infra.invalid_checkpoints import SPOILED, Spoiled


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


def described(folder: Path, point: EvalPoint = POINT) -> Manifest:
    return describe(folder, validate(folder), point)


def export(store: Store, folder: Path, point: EvalPoint = POINT) -> tuple[str, Manifest]:
    manifest, prefix = described(folder, point), new_prefix(point)
    for name in manifest.files:
        store.upload(folder / name, f"{prefix}/{name}")
    write_manifest(store, prefix, manifest)
    return prefix, manifest


@pytest.mark.parametrize("shards", [1, 2])
def test_a_complete_checkpoint_is_valid_and_its_files_are_listed(tmp_path: Path, shards: int) -> None:
    folder = make_checkpoint(tmp_path / "c", shards=shards)
    assert sorted(validate(folder)) == sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("spoiled", SPOILED, ids=str)
def test_a_checkpoint_that_is_not_complete_is_refused_naming_what_is_wrong(tmp_path: Path, spoiled: Spoiled) -> None:
    folder = make_checkpoint(tmp_path / "c", shards=2)
    spoiled.spoil(folder)
    with pytest.raises(SnapshotInvalid) as caught:
        validate(folder)
    assert caught.value.subject == spoiled.subject
    assert spoiled.subject in str(caught.value)


def test_a_folder_that_does_not_exist_is_missing_not_invalid(tmp_path: Path) -> None:
    with pytest.raises(SnapshotMissing, match="nowhere does not exist"):
        validate(tmp_path / "nowhere")


def test_optimizer_state_and_stray_files_do_not_travel(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c")
    for name in ("optimizer.pt", "training_args.bin", "manifest.json", "modeling_evil.py"):
        (folder / name).write_bytes(b"x")
    assert sorted(validate(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_manifest_accounts_for_every_file_and_tensor(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "c", shards=2)
    manifest = described(folder)
    assert {name: entry.size for name, entry in manifest.files.items()} == {f.name: f.stat().st_size for f in folder.iterdir()}
    assert {name: entry.digest for name, entry in manifest.tensors.items()} == digests(folder)
    assert manifest.n_bytes == sum(file.stat().st_size for file in folder.iterdir())


def test_a_manifest_comes_back_as_it_was_written(store: Store, tmp_path: Path) -> None:
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c"))
    assert read_manifest(store, prefix) == manifest


def test_a_manifest_is_written_once_and_never_changes(store: Store, tmp_path: Path) -> None:
    prefix, manifest = export(store, make_checkpoint(tmp_path / "c"))
    with pytest.raises(AlreadyExists):
        write_manifest(store, prefix, replace(manifest, step=11))
    assert read_manifest(store, prefix) == manifest


def test_no_manifest_is_no_snapshot(store: Store) -> None:
    store.write("snapshots/run/x/model.safetensors", b"half")
    with pytest.raises(SnapshotMissing, match="the export did not finish"):
        read_manifest(store, "snapshots/run/x")


def test_a_manifest_that_cannot_be_read_is_named(store: Store) -> None:
    store.write("snapshots/run/x/manifest.json", b'{"files": 3}')
    with pytest.raises(SnapshotInvalid) as caught:
        read_manifest(store, "snapshots/run/x")
    assert caught.value.subject == MANIFEST


def test_the_snapshot_digest_is_of_content_and_not_of_sharding_or_point(tmp_path: Path) -> None:
    one, three = (make_checkpoint(tmp_path / str(shards), shards=shards) for shards in (1, 3))
    assert described(one).snapshot_digest == described(three, EvalPoint(run="b", step=9)).snapshot_digest


@pytest.mark.parametrize("name", NAMES)
def test_one_bit_of_one_tensor_changes_the_snapshot_digest(tmp_path: Path, name: str) -> None:
    held = tensors(0)
    flipped = {**held, name: held[name][:-1] + bytes([held[name][-1] ^ 1])}
    a, b = make_checkpoint(tmp_path / "a", held=held), make_checkpoint(tmp_path / "b", held=flipped)
    assert described(a).snapshot_digest != described(b).snapshot_digest


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "chat_template.jinja", "generation_config.json"])
def test_another_tokenizer_config_or_template_changes_the_snapshot_digest(tmp_path: Path, name: str) -> None:
    folder = make_checkpoint(tmp_path / "c")
    before = described(folder).snapshot_digest
    (folder / name).write_text(json.dumps({"changed": True}))
    assert described(folder).snapshot_digest != before


def test_a_renamed_tensor_changes_the_snapshot_digest(tmp_path: Path) -> None:
    held = tensors(0)
    renamed = {name.replace("norm", "nrom"): data for name, data in held.items()}
    a, b = make_checkpoint(tmp_path / "a", held=held), make_checkpoint(tmp_path / "b", held=renamed)
    assert described(a).snapshot_digest != described(b).snapshot_digest


def test_a_prefix_is_never_used_twice() -> None:
    assert len({new_prefix(POINT) for _ in range(100)}) == 100

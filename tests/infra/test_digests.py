"""Every byte of a file counts in its digest, however the file is cut into blocks; each tensor's digest is of its own bytes."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import xxhash

from infra.digests import FileDigest, digest_file
from infra.local_files import opened
from tests.infra.checkpoints import write_raw, write_safetensors

HELD = {"a": b"\1" * 64, "b": b"", "c": bytes(range(256)) * 4, "d": b"\2" * 4}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "x.safetensors", HELD)
    return tmp_path / "x.safetensors"


def test_each_tensor_has_the_digest_of_its_own_bytes_also_one_without_any(file: Path) -> None:
    assert {name: entry.digest for name, entry in digest_file(file).tensors.items()} == {
        name: xxhash.xxh3_128_hexdigest(data) for name, data in HELD.items()
    }


@pytest.mark.parametrize("seed", range(20))
def test_the_blocks_in_which_a_file_comes_do_not_matter(file: Path, seed: int) -> None:
    data, chance, digest, at = file.read_bytes(), random.Random(seed), FileDigest(file), 0
    while at < len(data):
        size = chance.choice((1, 7, 64, 300))
        digest.update(memoryview(data[at : at + size]))
        at += size
    whole = digest_file(file)
    assert (digest.entry, digest.tensors) == (whole.entry, whole.tensors)


def test_a_file_that_loses_its_name_while_it_is_being_opened_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory may be another snapshot's by now: who frees it looks for those who have it open after the name is gone."""
    really = os.fstat

    def freed_meanwhile(descriptor: int) -> os.stat_result:
        file.unlink(missing_ok=True)
        return really(descriptor)

    monkeypatch.setattr(os, "fstat", freed_meanwhile)
    with pytest.raises(FileNotFoundError), opened(file):
        pass


def test_a_file_that_is_replaced_while_it_is_being_opened_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.fstat

    def replaced_meanwhile(descriptor: int) -> os.stat_result:
        other = file.with_name("other")
        other.write_bytes(file.read_bytes())
        other.replace(file)
        return really(descriptor)

    monkeypatch.setattr(os, "fstat", replaced_meanwhile)
    with pytest.raises(FileNotFoundError, match="replaced while it was being opened"), opened(file):
        pass


def test_every_byte_counts(file: Path) -> None:
    data, expected = file.read_bytes(), digest_file(file).entry
    for at in range(len(data)):
        digest = FileDigest(file)
        digest.update(memoryview(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
        assert digest.entry != expected, f"byte {at}"


def test_a_file_of_another_kind_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    assert digest_file(tmp_path / "config.json").entry.digest == xxhash.xxh3_128_hexdigest(b"{}")
    (tmp_path / "empty.json").write_bytes(b"")
    assert digest_file(tmp_path / "empty.json").entry.digest == xxhash.xxh3_128_hexdigest(b"")


def test_a_file_without_tensors_is_digested_too(tmp_path: Path) -> None:
    for text in ("one", "two"):
        write_raw(tmp_path / f"{text}.safetensors", json.dumps({"__metadata__": {"said": text}}).encode(), b"")
    assert digest_file(tmp_path / "one.safetensors").entry != digest_file(tmp_path / "two.safetensors").entry

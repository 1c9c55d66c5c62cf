"""What a user calls a checkpoint leads to files here, or to the remedy; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from infra.errors import ConfigError, SnapshotMissing
from infra.validation.examination import faults
from infra.validation.readers import LocalFolder
from infra.validation.resolve import open_checkpoint, resolve_checkpoint
from tests.infra.models import model

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, laid out as huggingface_hub lays it out."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


def cache_model(hub: Path, hub_id: str) -> Path:
    repository = hub / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    (repository / "snapshots").mkdir()
    return model("tied Qwen3", repository / "snapshots" / REVISION)


def test_a_folder_is_itself_by_path_or_by_url(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert resolve_checkpoint(str(tmp_path / "a b")) == tmp_path / "a b"
    assert resolve_checkpoint((tmp_path / "a b").as_uri()) == tmp_path / "a b"


def test_a_hub_id_in_the_local_cache_is_its_folder(hub: Path) -> None:
    folder = cache_model(hub, "owner/name")
    assert resolve_checkpoint("owner/name") == folder
    assert faults(open_checkpoint("owner/name")) == []


def test_a_hub_id_that_is_not_in_the_cache_is_refused_with_the_remedy(hub: Path) -> None:
    with pytest.raises(SnapshotMissing, match="hf download owner/name"):
        resolve_checkpoint("owner/name")


def test_a_folder_of_the_same_name_comes_before_the_hub(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_model(hub, "owner/name")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert resolve_checkpoint("owner/name") == Path("owner/name")


@pytest.mark.parametrize("text", ["nowhere", "/no/where", "./a/b", "a/b/c"])
def test_a_folder_that_is_not_there_is_missing(hub: Path, text: str) -> None:
    with pytest.raises(SnapshotMissing, match="does not exist"):
        resolve_checkpoint(text)


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SnapshotMissing, match="name the folder"):
        resolve_checkpoint(str(tmp_path / "model.safetensors"))


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        open_checkpoint("https://huggingface.co/owner/name")


def test_a_path_is_opened_as_a_folder(tmp_path: Path) -> None:
    reader = open_checkpoint(str(tmp_path))
    assert isinstance(reader, LocalFolder)
    assert reader.location == str(tmp_path)

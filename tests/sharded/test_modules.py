"""Ranks that hold a Hugging Face model, as replicas or in shards, stage what transformers would save of the whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from infra.validation.examination import faults
from infra.validation.readers import LocalFolder
from tests.services.ranks import on_ranks
from tests.sharded.models import (
    adapters_on_ranks,
    again_on_ranks,
    cleaned_up_on_ranks,
    converted_on_ranks,
    model_of,
    staged_on_ranks,
    whole_by_itself,
    with_adapter,
)

KINDS = ("replicas", "DDP", "FSDP2", "FSDP2 of experts", "HSDP", "FSDP2 on two nodes")


def tensors(folder: Path) -> dict[str, Any]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def refuse_difference(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


Staged = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    root = tmp_path_factory.mktemp("staged")
    return root, on_ranks(4, staged_on_ranks, str(root))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_together_stage_what_transformers_saves_of_the_whole(
    kind: str, staged: tuple[Path, list[dict[str, Any]]]
) -> None:
    root, copied = staged
    refuse_difference(tensors(root / kind / "ours"), tensors(root / kind / "theirs"))
    assert faults(LocalFolder(root / kind / "ours")) == []
    assert all(rank.get(kind, 1) for rank in copied)  # no rank is idle


@pytest.mark.slow
def test_what_a_converter_yields_is_staged_or_nothing_is_left_and_its_fault_is_named(tmp_path: Path) -> None:
    results = on_ranks(2, converted_on_ranks, str(tmp_path))
    for wrong, name in (("lost", "model.layers.1.mlp.up_proj.weight was promised"), ("misnamed", "mlp.up_proj.weights came")):
        assert all(name in result[wrong][0] for result in results)
        assert results[0][wrong][0] == results[1][wrong][0]
        assert max(result[wrong][1] for result in results) < 10.0
        assert [result[wrong][2] for result in results] == [[], []]
    assert [result["ours"][0] for result in results] == ["", ""]
    refuse_difference(tensors(tmp_path / "ours"), tensors(tmp_path / "theirs"))


@pytest.mark.slow
def test_adapters_are_staged_merged_or_alone_as_peft_would(tmp_path: Path) -> None:
    from peft import PeftModel
    from safetensors import safe_open

    failed = on_ranks(2, adapters_on_ranks, str(tmp_path))
    assert failed[0] == failed[1]
    assert "rank 1: MemoryError: no room" in failed[0]
    assert not (tmp_path / "adapter that fails" / "adapter_model.safetensors").exists()
    model = with_adapter(model_of("Qwen3", tie_word_embeddings=True))
    ids = torch.arange(16)[None]
    with torch.no_grad():
        wanted = model(ids).logits
        for folder in ("adapter", "adapter of a sharded model"):
            loaded = PeftModel.from_pretrained(model_of("Qwen3", tie_word_embeddings=True), str(tmp_path / folder))
            assert torch.equal(loaded(ids).logits, wanted)
            with safe_open(tmp_path / folder / "adapter_model.safetensors", "pt") as file:
                assert file.metadata()["base_digest"] == "d1"
        plain = model_of("Qwen3", tie_word_embeddings=True)
        assert not torch.allclose(plain(ids).logits, wanted, atol=1e-3)
    model.merge_and_unload().save_pretrained(tmp_path / "theirs")
    refuse_difference(tensors(tmp_path / "merged"), tensors(tmp_path / "theirs"))
    assert faults(LocalFolder(tmp_path / "merged")) == []


@pytest.mark.slow
def test_a_process_by_itself_stages_experts_as_transformers_saves_them(tmp_path: Path) -> None:
    whole_by_itself(tmp_path / "ours")
    model_of("Qwen3Moe").save_pretrained(tmp_path / "theirs")
    refuse_difference(tensors(tmp_path / "ours"), tensors(tmp_path / "theirs"))
    assert faults(LocalFolder(tmp_path / "ours")) == []


@pytest.fixture(params=["on disk", "in memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "on disk":
        yield tmp_path
        return
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs a tmpfs")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_memory_is_filled_again_once_nobody_has_the_last_snapshot_and_never_before(place: Path) -> None:
    results = on_ranks(2, again_on_ranks, str(place))
    for step in range(7):
        found = tensors(place / "copies" / f"{step}")
        assert {float(value) for tensor in found.values() for value in tensor.unique()} == {step + 1.0}
        assert faults(LocalFolder(place / "copies" / f"{step}")) == []
    refuse_difference(tensors(place / "staged" / "2"), tensors(place / "copies" / "2"))
    inodes = results[0]["inodes"]
    assert inodes[0] == inodes[1] == inodes[2]
    assert inodes[3] == inodes[4]
    assert not set(inodes[2]) & set(inodes[3])
    assert inodes[5] == inodes[6]
    assert [before == after for before, after in zip(inodes[4], inodes[5], strict=True)] == [False] + [True] * 6
    assert results[0]["late"] == min((place / "copies" / "4").glob("*.safetensors")).read_bytes()
    if place.is_relative_to("/dev/shm"):
        assert min(rank["mapped"] for rank in results) > 0
    assert len(results[0]["kept"]) == len(inodes[0])
    assert results[0]["left"] == []


@pytest.mark.slow
def test_memory_that_somebody_deletes_costs_one_export_its_reuse_and_nothing_else(place: Path) -> None:
    leader, other = on_ranks(2, cleaned_up_on_ranks, str(place))
    for step in range(5):
        found = tensors(place / "copies" / f"{step}")
        assert {float(value) for tensor in found.values() for value in tensor.unique()} == {step + 1.0}
    inodes = leader["inodes"]
    assert inodes[0] == inodes[1]
    assert inodes[2] == inodes[3] == inodes[4]
    assert (leader["borrowed"], other["borrowed"] > 0) == (0, True)

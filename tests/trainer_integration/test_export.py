"""A live model becomes a complete Hugging Face folder; an object that can't be saved so is refused before training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GenerationConfig

from infra.errors import ConfigError, StagingFailed
from infra.validation.examination import validate_checkpoint
from infra.validation.readers import LocalFolder
from tests.infra.models import SIZES
from tests.services.limits import files_of_at_most
from trainer_integration.export import HuggingFaceExporter
from trainer_integration.sharded.metadata import ModelFiles
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer


class Saveable:
    """Anything with transformers' `save_pretrained`."""

    def __init__(self, file: str) -> None:
        self.file, self.asked = file, {}

    asked: dict[str, Any]

    def save_pretrained(self, folder: Path, **options: Any) -> None:
        self.asked = options
        (folder / self.file).write_text("x")


def test_model_and_tokenizer_are_saved_together_as_safetensors(tmp_path: Path) -> None:
    model, tokenizer = Saveable("model.safetensors"), Saveable("tokenizer.json")
    HuggingFaceExporter(model, tokenizer)(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.safetensors", "tokenizer.json"]
    assert model.asked == {"safe_serialization": True}


@pytest.mark.parametrize(
    ("model", "tokenizer", "named"), [(object(), Saveable("t"), "model object"), (Saveable("m"), 3, "tokenizer int")]
)
def test_what_cannot_be_saved_is_refused_before_training(model: Any, tokenizer: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        HuggingFaceExporter(model, tokenizer)


def test_a_model_is_staged_as_transformers_saves_it_again_and_again(tmp_path: Path) -> None:
    import torch

    model, tokenizer = build_model(0, hidden=32, layers=1), build_tokenizer()
    export = HuggingFaceExporter(model, tokenizer)
    for step in range(2):
        with torch.no_grad():
            model.model.norm.weight.fill_(step)
        export(tmp_path / f"ours {step}")
        model.save_pretrained(tmp_path / f"theirs {step}")
        tokenizer.save_pretrained(tmp_path / f"theirs {step}")
        for file in (tmp_path / f"theirs {step}").iterdir():
            ours = tmp_path / f"ours {step}" / file.name
            if file.suffix == ".safetensors":
                found, wanted = load_file(ours), load_file(file)
                assert found.keys() == wanted.keys()
                assert all(torch.equal(found[name], wanted[name]) for name in wanted)
            else:
                assert ours.read_bytes() == file.read_bytes()


def test_a_staging_area_without_room_fails_the_export_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    export = HuggingFaceExporter(build_model(0, hidden=32, layers=1), build_tokenizer())
    with files_of_at_most(20_000), pytest.raises(StagingFailed, match="File too large"):
        export(tmp_path)
    assert list(tmp_path.iterdir()) == []
    export(tmp_path)
    assert validate_checkpoint(LocalFolder(tmp_path))


def test_what_a_trainer_changes_of_the_generation_config_before_it_begins_is_staged() -> None:
    """transformers' Trainer gives config and generation config its tokenizer's special tokens."""
    generation, tokenizer = GenerationConfig(eos_token_id=3), build_tokenizer()
    files = ModelFiles.of(build_model(0, hidden=32, layers=1).config, tokenizer, generation)
    generation.eos_token_id = [2, 3]
    assert json.loads(files.rendered("float32")["generation_config.json"])["eos_token_id"] == [2, 3]


@pytest.mark.parametrize("inside", [False, True])
def test_a_compiled_model_is_staged_as_it_was_before(tmp_path: Path, inside: bool) -> None:
    plain = build_model(0, hidden=32, layers=1)
    plain.save_pretrained(tmp_path / "theirs")
    model: Any = plain
    if inside:
        plain.model.layers[0] = torch.compile(plain.model.layers[0])
    else:
        model = torch.compile(plain)
    HuggingFaceExporter(model, build_tokenizer())(tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_what_transformers_keeps_in_float32_is_staged_in_it(tmp_path: Path) -> None:
    sizes = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
    config = DeepseekV3Config(**{**SIZES, **sizes, **experts, "first_k_dense_replace": 1, "dtype": "bfloat16"})
    with torch.device("cpu"):
        DeepseekV3ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "begun")
    model = DeepseekV3ForCausalLM.from_pretrained(tmp_path / "begun", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs")
    HuggingFaceExporter(model, build_tokenizer())(tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert {name: tensor.dtype for name, tensor in ours.items()} == {name: tensor.dtype for name, tensor in theirs.items()}
    assert torch.float32 in {tensor.dtype for tensor in ours.values()}
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)

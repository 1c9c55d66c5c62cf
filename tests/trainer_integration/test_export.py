"""A live model becomes a complete Hugging Face folder; an object that can't be saved so is refused before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from infra.errors import ConfigError, StagingFailed
from infra.validation.examination import validate_checkpoint
from infra.validation.readers import LocalFolder
from tests.services.limits import files_of_at_most
from trainer_integration.export import HuggingFaceExporter
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

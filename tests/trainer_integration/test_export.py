"""A live model becomes a complete Hugging Face folder; an object that can't be saved so is refused before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.errors import ConfigError
from trainer_integration.export import HuggingFaceExporter


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

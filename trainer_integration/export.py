"""A live model becomes a complete Hugging Face folder; what the training loop waits for is this copy and nothing else.

The folder is on tmpfs by default, so the copy is one in memory. Hashing and sending to the store happen later, elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class HuggingFaceExporter:
    """Stages a `transformers` model and its tokenizer, in the model's own dtype; one process holds all of it."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ConfigError for an object that can't be saved in Hugging Face layout."""
        for name, part in (("model", model), ("tokenizer", tokenizer)):
            if not hasattr(part, "save_pretrained"):
                raise ConfigError(f"{name} {type(part).__name__} has no save_pretrained: give a Hugging Face {name}")
        self.model: Any = model
        self.tokenizer: Any = tokenizer

    def __call__(self, folder: Path) -> None:
        """Raises what `save_pretrained` raises, an OSError for a full staging area for one."""
        self.model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)

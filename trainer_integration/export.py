"""A live model becomes a complete Hugging Face folder; what the training loop waits for is this copy and nothing else.

The folder is on tmpfs by default, so the copy is one in memory. Hashing and sending to the store happen later, elsewhere.
Models that several ranks hold together, and Megatron-Core's, are in `trainer_integration.sharded` and `.megatron`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from trainer_integration.sharded.exporter import StagedExporter


class HuggingFaceExporter:
    """Stages a `transformers` model and its tokenizer, in the dtype of its config; this process holds all of it.

    Of several ranks one may use it alone. Ranks that share the work, or the model, use ModuleExporter, all of them. An object
    that has `save_pretrained` and is no such model saves itself.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ConfigError for an object that can't be saved in Hugging Face layout, or of which other ranks have a part."""
        for name, part in (("model", model), ("tokenizer", tokenizer)):
            if not hasattr(part, "save_pretrained"):
                raise ConfigError(f"{name} {type(part).__name__} has no save_pretrained: give a Hugging Face {name}")
        self.model: Any = model
        self.tokenizer: Any = tokenizer
        self.staged = self._staged()

    def __call__(self, folder: Path) -> None:
        """Raises StagingFailed, of an OSError for a full staging area for one, or what `save_pretrained` raises."""
        if self.staged is not None:
            self.staged(folder)
            return
        self.model.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)

    def reuse_memory(self, spare_folder: Path) -> None:
        """As StagedExporter's; without effect on an object that saves itself."""
        if self.staged is not None:
            self.staged.reuse_memory(spare_folder)

    def _staged(self) -> StagedExporter | None:
        if not (hasattr(self.model, "all_tied_weights_keys") and hasattr(self.model, "config")):
            return None
        from trainer_integration.sharded.metadata import ModelFiles
        from trainer_integration.sharded.modules import ModuleExporter, is_sharded
        from trainer_integration.sharded.ranks import Ranks

        if any(map(is_sharded, self.model.parameters())):
            raise ConfigError("other ranks hold parts of the model: make a ModuleExporter on every rank")
        files = ModelFiles.of(self.model.config, self.tokenizer, getattr(self.model, "generation_config", None))
        return ModuleExporter(self.model, files, ranks=Ranks.alone())

"""Small LoRA adapters as PEFT saves them, for the models of tests/infra/models.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RANK = 4


def make_adapter(base: Path, folder: Path, *, seed: int = 0, scale: float = 0.1, **config: Any) -> Path:
    """Trained, so to speak: unlike a fresh adapter it changes the model. Config: peft.LoraConfig."""
    import peft
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    made = {"r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **config}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**made))
    random = torch.Generator().manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = scale * torch.randn(parameter.shape, generator=random)
    adapted.save_pretrained(folder)
    return folder

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3ForCausalLM

from trainer_integration.tiny_trainer.model import build_model


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    """A small model that knows nothing, with a preference for some tokens, `<eos>` among them."""
    model = build_model(0, hidden=32, layers=2)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(3.0)
    return model

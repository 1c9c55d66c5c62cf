"""Small complete checkpoints of real architectures, as transformers saves them, with a tokenizer and a chat template."""

from __future__ import annotations

import atexit
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.infra.checkpoints import INDEX, write_raw
from trainer_integration.tiny_trainer.model import SPECIAL, build_model, build_tokenizer

WORDS = 32
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": SPECIAL.index("<bos>"),
    "eos_token_id": SPECIAL.index("<eos>"),
    "pad_token_id": SPECIAL.index("<pad>"),
}


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def _save(folder: Path, family: str, **config: Any) -> None:
    import torch
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dtype = config.pop("dtype", "float32")
        made = getattr(transformers, f"{family}Config")(**{**SIZES, "dtype": dtype, **config})
        getattr(transformers, f"{family}ForCausalLM")(made).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def _demo(folder: Path) -> None:
    """What the demo's trainer exports."""
    from trainer_integration.export import HuggingFaceExporter

    folder.mkdir()
    HuggingFaceExporter(build_model(0, hidden=32, layers=1), build_tokenizer())(folder)


def _sharded(folder: Path) -> None:
    _save(folder, "Qwen3", tie_word_embeddings=False)
    spread(folder, read_tensors(folder))


def _multimodal(folder: Path) -> None:
    """As Qwen3.5 is published: text and pictures in one model, of bfloat16 but for two tensors of each linear attention."""
    import torch
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    text = {**SIZES, **linear, "layer_types": ["linear_attention", "full_attention"]}
    sight = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4}
    made = Qwen3_5Config(text_config=text, vision_config={**sight, "num_position_embeddings": 16}, dtype="bfloat16")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3_5ForConditionalGeneration(made).to(torch.bfloat16).save_pretrained(folder)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    spread(folder, {n: _as_float32(t) if _FLOAT32.search(n) else t for n, t in read_tensors(folder).items()})


_FLOAT32 = re.compile(r"linear_attn\.(A_log|norm\.weight)$")


def _as_float32(tensor: Tensor) -> Tensor:
    """A bfloat16 is the first half of a float32."""
    halves = [tensor.data[at : at + 2] for at in range(0, len(tensor.data), 2)]
    return Tensor("F32", tensor.shape, b"".join(b"\0\0" + half for half in halves))


VALID: Mapping[str, Callable[[Path], None]] = {
    "tied Qwen3": lambda folder: _save(folder, "Qwen3", tie_word_embeddings=True),
    "untied Qwen3": lambda folder: _save(folder, "Qwen3", tie_word_embeddings=False),
    "sharded Qwen3": _sharded,
    "bfloat16 Qwen3": lambda folder: _save(folder, "Qwen3", tie_word_embeddings=False, dtype="bfloat16"),
    "Qwen3-MoE": lambda folder: _save(folder, "Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    "Llama": lambda folder: _save(folder, "Llama", tie_word_embeddings=False),
    "the demo's export": _demo,
    "Qwen3.5 of text and pictures": _multimodal,
}


@cache
def _made(name: str) -> Path:
    folder = Path(mkdtemp(prefix="pinpoint-test-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    VALID[name](folder / "made")
    return folder / "made"


def model(name: str, folder: Path) -> Path:
    """A fresh copy, to be spoiled; each is built once a session."""
    shutil.copytree(_made(name), folder)
    return folder


def read_tensors(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        data = file.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            found[name] = Tensor(entry["dtype"], tuple(entry["shape"]), data[start + begin : start + end])
    return found


def spread(folder: Path, held: Mapping[str, Tensor], shards: int = 2) -> None:
    """Writes the tensors, in turn, over so many files with an index, in place of what was there; 1 is a single file."""
    for old in (*folder.glob("model*.safetensors"), *folder.glob(INDEX)):
        old.unlink()
    names = sorted(held)
    files = ["model.safetensors"] if shards == 1 else [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    weight_map = {name: files[position % shards] for position, name in enumerate(names)}
    for file in files:
        _write(folder / file, {name: held[name] for name in names if weight_map[name] == file})
    if shards > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _write(path: Path, held: Mapping[str, Tensor]) -> None:
    header: dict[str, Any] = {}
    position = 0
    for name, tensor in held.items():
        end = position + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [position, end]}
        position = end
    write_raw(path, json.dumps(header).encode(), b"".join(tensor.data for tensor in held.values()))

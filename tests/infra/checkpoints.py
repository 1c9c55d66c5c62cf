"""Small complete checkpoints in Hugging Face layout, made of raw bytes: no torch, and every byte is the test's to choose."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path

INDEX = "model.safetensors.index.json"
NAMES = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
)
TENSOR_BYTES = 64


def tensors(seed: int) -> dict[str, bytes]:
    source = random.Random(seed)
    return {name: source.randbytes(TENSOR_BYTES) for name in NAMES}


def write_safetensors(path: Path, held: Mapping[str, bytes]) -> None:
    """Format: https://github.com/huggingface/safetensors#format"""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, data in held.items():
        header[name] = {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [position, position + len(data)]}
        position += len(data)
    write_raw(path, json.dumps(header).encode(), b"".join(held.values()))


def write_raw(path: Path, header: bytes, data: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def make_checkpoint(folder: Path, seed: int = 0, *, shards: int = 1, held: Mapping[str, bytes] | None = None) -> Path:
    """A complete checkpoint; another seed is other weights of the same architecture."""
    folder.mkdir(parents=True)
    held = tensors(seed) if held is None else held
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 16}))
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "BPE"}}))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", held)
        return folder
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {tensor: data for position, (tensor, data) in enumerate(held.items()) if position % shards == number}
        write_safetensors(folder / name, part)
        weight_map |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder

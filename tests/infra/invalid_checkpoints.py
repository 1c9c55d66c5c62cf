"""Every way to spoil a valid two-shard checkpoint that we know of, and what the refusal must name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.infra.checkpoints import INDEX, write_raw, write_safetensors

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@dataclass(frozen=True)
class Spoiled:
    """`spoil` damages the folder in place; `subject` is what SnapshotInvalid must name."""

    name: str
    subject: str
    spoil: Callable[[Path], object]

    def __str__(self) -> str:
        return self.name


def _cut(name: str, keep: float) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])

    return spoil


def _append(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + bytes(64))


def _gone(*names: str) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return spoil


def _index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return spoil


def _text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def _header(header: object) -> Callable[[Path], object]:
    return lambda folder: write_raw(folder / FIRST, json.dumps(header).encode(), b"")


def _point_outside(folder: Path) -> None:
    (folder.parent / "secret.safetensors").write_bytes((folder / FIRST).read_bytes())
    _index(lambda m: m.update(dict.fromkeys(m, "../secret.safetensors")))(folder)


def _bin_only(folder: Path) -> None:
    _gone(FIRST, SECOND, INDEX)(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04pickle")


def _empty_model(folder: Path) -> None:
    _gone(FIRST, SECOND, INDEX)(folder)
    write_safetensors(folder / "model.safetensors", {})


SPOILED = (
    Spoiled("truncated in the data", FIRST, _cut(FIRST, 0.9)),
    Spoiled("truncated in the header", FIRST, _cut(FIRST, 0.1)),
    Spoiled("empty file", SECOND, _cut(SECOND, 0.0)),
    Spoiled("zero tail", SECOND, _append(SECOND)),
    Spoiled("missing shard", SECOND, _gone(SECOND)),
    Spoiled("ghost index entry", "ghost.weight", _index(lambda m: m.update({"ghost.weight": FIRST}))),
    Spoiled("tensor that the index does not list", "model.norm.weight", _index(lambda m: m.pop("model.norm.weight"))),
    Spoiled("tensor in another shard than promised", "lm_head.weight", _index(lambda m: m.update({"lm_head.weight": SECOND}))),
    Spoiled("index points outside", "../secret.safetensors", _point_outside),
    Spoiled("index is not JSON", INDEX, _text(INDEX, "{")),
    Spoiled("index without a map", INDEX, _text(INDEX, '{"metadata": {}}')),
    Spoiled("index is a list", INDEX, _text(INDEX, "[1]")),
    Spoiled("index names numbers", INDEX, _text(INDEX, '{"weight_map": {"a": 1}}')),
    Spoiled("index names nothing", INDEX, _text(INDEX, '{"weight_map": {}}')),
    Spoiled("no config", "config.json", _gone("config.json")),
    Spoiled("no tokenizer", "tokenizer.json", _gone("tokenizer.json")),
    Spoiled("pickle only", "pytorch_model.bin", _bin_only),
    Spoiled("no tensors", "model.safetensors", _empty_model),
    Spoiled("garbage", FIRST, lambda folder: (folder / FIRST).write_bytes(b"\x93garbage" * 40)),
    Spoiled("header is not JSON", FIRST, lambda folder: write_raw(folder / FIRST, b"not json", bytes(8))),
    Spoiled("header is a list", FIRST, _header([1, 2])),
    Spoiled("header entry is no tensor", FIRST, _header({"a": 5})),
    Spoiled("header entry without offsets", FIRST, _header({"a": {"dtype": "F32", "shape": [1]}})),
    Spoiled("header with negative offsets", FIRST, _header({"a": {"dtype": "F32", "shape": [0], "data_offsets": [-8, 0]}})),
)

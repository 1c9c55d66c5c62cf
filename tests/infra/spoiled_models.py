"""Every way to spoil a valid model that only its config, its values or its tokenizer give away, and who must find it.

To add one: a name, the class that must refuse it, what that must name, and a function that spoils a folder in place.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra import errors
from tests.infra.checkpoints import INDEX, write_raw
from tests.infra.invalid_checkpoints import FIRST, SECOND
from tests.infra.models import WORDS, Tensor, read_tensors, spread

HEAD, EMBEDDING, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
KEY = "model.layers.0.self_attn.k_proj.weight"
WIDE = "model.layers.1.mlp.up_proj.weight"  # large enough to be sampled, not read whole
QUERY = "model.layers.1.self_attn.q_proj.weight"
EXPERT = "model.layers.0.mlp.experts.3.up_proj.weight"
Spoil = Callable[[Path], object]


@dataclass(frozen=True)
class Fault:
    """`links` faults are of a file system, and can't be in an object store."""

    name: str
    kind: type[errors.SnapshotInvalid]
    subject: str
    spoil: Spoil
    of: str = "sharded Qwen3"
    links: bool = False

    def __str__(self) -> str:
        return self.name


def _tensors(change: Callable[[dict[str, Tensor]], object], shards: int = 2) -> Spoil:
    def spoil(folder: Path) -> None:
        held = read_tensors(folder)
        change(held)
        spread(folder, held, shards)

    return spoil


def _tensor(name: str, **changes: Any) -> Spoil:
    return _tensors(lambda held: held.update({name: replace(held[name], **changes)}))


def _values(name: str, position: int, value: float, format: str = "<f") -> Spoil:
    """One value of a tensor, by its position in bytes."""

    def change(held: dict[str, Tensor]) -> None:
        data = bytearray(held[name].data)
        raw = struct.pack("<f", value)[2:] if format == "bf16" else struct.pack(format, value)
        at = position % len(data)
        data[at : at + len(raw)] = raw
        held[name] = replace(held[name], data=bytes(data))

    return _tensors(change)


def _json(file: str, **changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        found = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**found, **changes}))

    return spoil


def _rows(name: str, count: int) -> Spoil:
    def change(held: dict[str, Tensor]) -> None:
        width = held[name].shape[1]
        held[name] = Tensor("F32", (count, width), (held[name].data * 2)[: count * width * 4])

    return _tensors(change)


def _dtype(name: str, dtype: str) -> Spoil:
    def change(held: dict[str, Tensor]) -> None:
        tensor = held[name]
        held[name] = Tensor(dtype, tensor.shape, tensor.data[: math.prod(tensor.shape) * 2])

    return _tensors(change)


def _header(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        data = (folder / FIRST).read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        change(header)
        write_raw(folder / FIRST, json.dumps(header).encode(), data[start:])

    return spoil


def _moved(by: int, which: int) -> Spoil:
    """A tensor of the right length that lies elsewhere than after the one before it."""

    def change(header: dict[str, Any]) -> None:
        entries = sorted((e for n, e in header.items() if n != "__metadata__"), key=lambda e: e["data_offsets"])
        entries[which]["data_offsets"] = [offset + by for offset in entries[which]["data_offsets"]]

    return _header(change)


def _name_twice(folder: Path) -> None:
    data = (folder / FIRST).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    name, entry = next(iter(json.loads(data[8:start]).items()))
    again = f"{{{json.dumps(name)}: {json.dumps(entry)}, ".encode() + data[9:start]
    write_raw(folder / FIRST, again, data[start:])


def _linked(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).rename(folder.parent / f"outside-{name}")
        (folder / name).symlink_to(folder.parent / f"outside-{name}")

    return spoil


def _pipe(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return spoil


def _text(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text)


def _encoded(name: str, encoding: str) -> Spoil:
    return lambda folder: (folder / name).write_bytes((folder / name).read_text().encode(encoding))


def _looped(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(name)

    return spoil


def _again(name: str, other: str) -> Spoil:
    return lambda folder: (folder / other).write_bytes((folder / name).read_bytes())


def _gone(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def _pickled(folder: Path) -> None:
    for file in (*folder.glob("*.safetensors"), folder / INDEX):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    (folder / "training_args.bin").write_bytes(b"\x80\x04")


def _index_outside(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][NORM] = "/etc/passwd"
    (folder / INDEX).write_text(json.dumps(index))


def _other_head(held: dict[str, Tensor]) -> None:
    """A head of its own in a checkpoint whose config ties it."""
    held[HEAD] = replace(held[EMBEDDING], data=bytes(len(held[EMBEDDING].data)))


def _unknown(change: Spoil, **config: Any) -> Spoil:
    """An architecture that transformers does not know."""

    def spoil(folder: Path) -> None:
        _json("config.json", model_type="novel", architectures=["NovelForCausalLM"], **config)(folder)
        change(folder)

    return spoil


def _drop(name: str) -> Spoil:
    return _tensors(lambda held: held.pop(name))


def _drop_layer(held: dict[str, Tensor]) -> None:
    for name in [name for name in held if ".layers.1." in name]:
        del held[name]


def _token_beyond(folder: Path) -> None:
    found = json.loads((folder / "tokenizer.json").read_text())
    found["model"]["vocab"]["zebra"] = WORDS
    (folder / "tokenizer.json").write_text(json.dumps(found))


MOE = "Qwen3-MoE"
FAULTS = (
    Fault("lost tensor", errors.TensorMissing, QUERY, _drop(QUERY)),
    Fault("extra tensor", errors.TensorUnexpected, "stray.weight", _tensors(lambda h: h.update({"stray.weight": h[NORM]}))),
    Fault("transposed", errors.ShapeMismatch, KEY, _tensor(KEY, shape=(32, 16))),
    Fault("lost head", errors.HeadMissing, HEAD, _drop(HEAD)),
    Fault("lost head, one file", errors.HeadMissing, HEAD, _tensors(lambda held: held.pop(HEAD), 1)),
    Fault("own head though tied", errors.TiedWeightsDiffer, HEAD, _tensors(_other_head), of="tied Qwen3"),
    Fault("padded embedding", errors.VocabMismatch, EMBEDDING, _rows(EMBEDDING, WORDS + 8)),
    Fault("padded head", errors.VocabMismatch, HEAD, _rows(HEAD, WORDS + 8)),
    Fault("cut vocabulary", errors.VocabMismatch, HEAD, _rows(HEAD, WORDS - 1)),
    Fault("lost expert", errors.ExpertMissing, EXPERT, _drop(EXPERT), of=MOE),
    Fault("lost last expert of a layer", errors.ExpertMissing, "model.layers.0.mlp.experts.3.down_proj.weight",
          _tensors(lambda h: [h.pop(n) for n in list(h) if ".0.mlp.experts.3." in n]), of=MOE),
    Fault("two dtypes", errors.DtypeMismatch, NORM, _dtype(NORM, "BF16")),
    Fault("dtype is not the config's", errors.DtypeMismatch, HEAD, _json("config.json", dtype="bfloat16")),
    Fault("unknown dtype", errors.DtypeUnknown, NORM, _tensor(NORM, dtype="F33")),
    Fault("NaN at the start", errors.NotFinite, WIDE, _values(WIDE, 0, math.nan)),
    Fault("infinity at the end", errors.NotFinite, WIDE, _values(WIDE, -4, math.inf)),
    Fault("minus infinity in the middle", errors.NotFinite, WIDE, _values(WIDE, 10240, -math.inf)),
    Fault("NaN in bfloat16", errors.NotFinite, QUERY, _values(QUERY, -2, math.nan, "bf16"), of="bfloat16 Qwen3"),
    Fault("overlapping tensors", errors.SpansBroken, "", _moved(-4, 1)),
    Fault("gap between tensors", errors.SpansBroken, "", _moved(4, 0)),
    Fault("length that is not its shape's", errors.SpansBroken, NORM, _tensor(NORM, shape=(31,))),
    Fault("name twice in a header", errors.FileDamaged, FIRST, _name_twice),
    Fault("truncated", errors.FileDamaged, SECOND, lambda f: os.truncate(f / SECOND, 5000)),
    Fault("lost shard", errors.ShardMissing, SECOND, _gone(SECOND)),
    Fault("shard of another save", errors.ShardUnlisted, "model-00003-of-00003.safetensors",
          lambda f: (f / "model-00003-of-00003.safetensors").write_bytes((f / FIRST).read_bytes())),
    Fault("single file of another save", errors.ShardUnlisted, "model.safetensors",
          lambda f: (f / "model.safetensors").write_bytes((f / FIRST).read_bytes())),
    *(Fault(f"{name} beside a single file", errors.ShardUnlisted, name,
            _again("model.safetensors", name), of="untied Qwen3")
      for name in ("old_shard.safetensors", "model.fp16.safetensors", "mtp.safetensors")),
    Fault("shards without an index", errors.IndexInvalid, INDEX, _gone(INDEX)),
    Fault("pickle only", errors.PickleOnly, "pytorch_model.bin", _pickled),
    Fault("absolute path in the index", errors.PathOutside, "/etc/passwd", _index_outside),
    Fault("shard is a link outside", errors.PathOutside, SECOND, _linked(SECOND), links=True),
    Fault("config is a link outside", errors.PathOutside, "config.json", _linked("config.json"), links=True),
    Fault("shard is a pipe", errors.PathOutside, SECOND, _pipe(SECOND), links=True),
    Fault("shard is a link to itself", errors.PathOutside, SECOND, _looped(SECOND), links=True),
    Fault("config is a link to itself", errors.PathOutside, "config.json", _looped("config.json"), links=True),
    Fault("config needs code", errors.RemoteCodeRefused, "config.json", _json("config.json", auto_map={"AutoConfig": "m.C"})),
    Fault("tokenizer needs code", errors.RemoteCodeRefused, "tokenizer_config.json",
          _json("tokenizer_config.json", auto_map={"AutoTokenizer": ["t.T", None]})),
    Fault("config is not JSON", errors.ConfigInvalid, "config.json", _text("config.json", "{")),
    Fault("config without a model type", errors.ConfigInvalid, "config.json", _text("config.json", "{}")),
    Fault("config of no model", errors.ConfigInvalid, "config.json", _json("config.json", hidden_size="many")),
    Fault("generation config is a list", errors.ConfigInvalid, "generation_config.json", _text("generation_config.json", "[]")),
    *(Fault(f"{file} in {encoding}", errors.ConfigInvalid, file, _encoded(file, encoding))
      for file in ("config.json", "generation_config.json", "tokenizer_config.json") for encoding in ("utf-8-sig", "utf-16")),
    *(Fault(f"{file} in {encoding}", kind, file, _encoded(file, encoding)) for encoding in ("utf-8-sig", "utf-16")
      for file, kind in ((INDEX, errors.IndexInvalid), ("tokenizer.json", errors.TokenizerInvalid))),
    *(Fault(f"{file} with eos {ids}", errors.ConfigInvalid, file, _json(file, eos_token_id=ids))
      for file in ("config.json", "generation_config.json") for ids in ([2, "x"], {"a": 1}, [[1], [2]], "x", [2.5], True)),
    Fault("unknown architecture: eos of a word", errors.ConfigInvalid, "config.json",
          _json("config.json", model_type="novel", eos_token_id=[1, "x"])),
    Fault("tokenizer is not JSON", errors.TokenizerInvalid, "tokenizer.json", _text("tokenizer.json", "{")),
    Fault("no tokenizer", errors.TokenizerInvalid, "tokenizer.json", _gone("tokenizer.json")),
    Fault("tokenizer of a larger model", errors.TokenizerTooLarge, "tokenizer.json", _token_beyond),
    Fault("eos of another token", errors.EosDisagrees, "config.json", _json("config.json", eos_token_id=5)),
    Fault("eos lost in generation", errors.EosDisagrees, "generation_config.json",
          _json("generation_config.json", eos_token_id=[5, 6])),
    Fault("eos out of the vocabulary", errors.EosDisagrees, "config.json", _json("config.json", eos_token_id=[2, 99])),
    Fault("eos sets that cross", errors.EosDisagrees, "generation_config.json", lambda f: (
        _json("config.json", eos_token_id=[2, 5])(f), _json("generation_config.json", eos_token_id=[2, 6])(f))),
    Fault("no chat template", errors.ChatTemplateMissing, "chat_template.jinja", _gone("chat_template.jinja")),
    Fault("unknown architecture: lost head", errors.HeadMissing, HEAD, _unknown(_drop(HEAD))),
    Fault("unknown architecture: padded", errors.VocabMismatch, EMBEDDING, _unknown(_rows(EMBEDDING, WORDS + 8))),
    Fault("unknown architecture: lost layer", errors.TensorMissing, "layers.1", _unknown(_tensors(_drop_layer))),
    Fault("unknown architecture: lost expert", errors.ExpertMissing, EXPERT, _unknown(_drop(EXPERT)), of=MOE),
    Fault("unknown architecture: NaN", errors.NotFinite, NORM, _unknown(_values(NORM, 0, math.nan))),
)  # fmt: skip

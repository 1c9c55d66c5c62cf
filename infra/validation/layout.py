"""The files of a checkpoint in Hugging Face layout are those that its index or its names promise: no fewer, no others.

Every fault goes to `report`, which raises it, or keeps it and lets the reading go on with what is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from infra.errors import (
    ConfigInvalid,
    IndexInvalid,
    PathOutside,
    PickleOnly,
    ShardMissing,
    ShardUnlisted,
    SnapshotInvalid,
    TokenizerInvalid,
    WeightsMissing,
)
from infra.validation.headers import TensorSpan, read_header
from infra.validation.readers import CheckpointReader, Entry

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
MAX_INDEX_BYTES = 256 * 2**20
# What is copied beside the weights: an allow list, so that nobody's optimizer state or stray marker travels along.
METADATA = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_WEIGHTS = re.compile(r"model(-(\d+)-of-(\d+))?\.safetensors")
_BESIDE = {"adapter_model.safetensors", "consolidated.safetensors"}  # PEFT's, and Mistral's own layout of the same weights
_PICKLE = re.compile(r"(pytorch_model|consolidated|model|tf_model)\b.*\.(bin|pt|pth|ckpt|pkl)")
Report = Callable[[SnapshotInvalid], None]


@dataclass(slots=True)
class Contents:
    """What a checkpoint holds; `whole` unless a weight file is missing or could not be read."""

    reader: CheckpointReader
    entries: dict[str, Entry]
    promised: dict[str, str] | None = None
    shards: list[str] = field(default_factory=list)
    spans: dict[str, TensorSpan] = field(default_factory=dict)
    files_of: dict[str, str] = field(default_factory=dict)
    whole: bool = True

    @property
    def location(self) -> str:
        return self.reader.location

    @property
    def metadata(self) -> list[str]:
        return [name for name in METADATA if name in self.entries]

    @property
    def files(self) -> list[str]:
        """All that makes up the snapshot."""
        return [*self.metadata, *([INDEX] if self.promised is not None else []), *self.shards]

    def read(self, name: str) -> bytes:
        return self.reader.read_range(name, 0, self.entries[name].size)


def raise_it(fault: SnapshotInvalid) -> None:
    raise fault


def read_contents(reader: CheckpointReader, report: Report = raise_it) -> Contents:
    """Raises SnapshotMissing if there is nothing at all."""
    contents = Contents(reader=reader, entries=reader.entries())
    _refuse_stray(contents, report)
    _find_shards(contents, report)
    if CONFIG not in contents.entries:
        message = f"checkpoint {contents.location} has no {CONFIG}: save the model's config with it"
        report(ConfigInvalid(message, subject=CONFIG))
    if not any(name in contents.entries for name in TOKENIZER_FILES):
        message = f"checkpoint {contents.location} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): save it too"
        report(TokenizerInvalid(message, subject=TOKENIZER_FILES[0]))
    _read_headers(contents, report)
    return contents


def _refuse_stray(contents: Contents, report: Report) -> None:
    """Only of what would be read: a link to somebody's optimizer state is none of our business."""
    for name, entry in list(contents.entries.items()):
        if entry.stray and (name in METADATA or name == INDEX or name.endswith(".safetensors")):
            report(PathOutside(f"{name} in {contents.location} {entry.stray}: put the file itself there", subject=name))
        if entry.stray:
            del contents.entries[name]


def _find_shards(contents: Contents, report: Report) -> None:
    names, place = contents.entries, contents.location
    if INDEX in names:
        _read_index(contents, report)
        if not contents.promised:
            return
    elif SINGLE in names:
        contents.shards = [SINGLE]
    else:
        contents.whole = False
        report(_no_weights(contents))
        return
    for shard in sorted(_weight_files(names) - set(contents.shards)):
        why = f"is not named by {INDEX}" if INDEX in names else f"lies beside {SINGLE}, which has the whole model,"
        remedy = "remove it, or mend the index" if INDEX in names else "remove it"
        report(ShardUnlisted(f"{shard} in {place} {why} and is of another save: {remedy}", subject=shard))


def _weight_files(names: Iterable[str]) -> set[str]:
    """Those that would be loaded, or are of another save. Without an index SGLang loads every file that it does not know to be
    something else (sglang/srt/model_loader/weight_utils.py, filter_duplicate_safetensors_files), transformers one.
    """
    if INDEX in names:
        return set(filter(_WEIGHTS.fullmatch, names))
    return {name for name in names if name.endswith(".safetensors") and not name.startswith(".")} - _BESIDE


def _no_weights(contents: Contents) -> SnapshotInvalid:
    pickled = next((name for name in contents.entries if _PICKLE.fullmatch(name)), None)
    shards = sorted(name for name in contents.entries if _WEIGHTS.fullmatch(name))
    place = contents.location
    if shards:
        return IndexInvalid(f"checkpoint {place} has shards such as {shards[0]} but no {INDEX}: save that too", subject=INDEX)
    if pickled:
        message = f"checkpoint {place} has its weights only in {pickled}, which runs code when opened: save as {SINGLE}"
        return PickleOnly(message, subject=pickled)
    message = f"checkpoint {place} has neither {SINGLE} nor {INDEX}; weights must be in safetensors format"
    return WeightsMissing(message, subject=SINGLE)


def _read_index(contents: Contents, report: Report) -> None:
    names, place = contents.entries, contents.location
    try:
        if names[INDEX].size > MAX_INDEX_BYTES:
            raise ValueError(names[INDEX].size)
        promised: dict[str, str] = json.loads(contents.read(INDEX).decode())["weight_map"]
        shards = sorted(set(promised.values()))
        outside = [shard for shard in shards if re.split(r"[/\\]", shard) != [shard] or shard in ("", ".", "..")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        contents.whole = False
        report(IndexInvalid(f"{INDEX} of checkpoint {place} can't be read: save the checkpoint again", subject=INDEX))
        return
    contents.promised = promised
    if not promised:
        contents.whole = False
        report(IndexInvalid(f"{INDEX} of checkpoint {place} names no tensors: save the checkpoint again", subject=INDEX))
        return
    for shard in outside:
        report(PathOutside(f"{INDEX} names {shard!r}, which is outside of the checkpoint: refused", subject=shard))
    for shard in sorted(set(shards) - names.keys() - set(outside)):
        report(ShardMissing(f"{INDEX} names {shard}, which is not in {place}: copy it there", subject=shard))
    contents.shards = [shard for shard in shards if shard in names and shard not in outside]
    contents.whole = len(contents.shards) == len(shards)
    for lost in _lost(shards):
        report(ShardMissing(f"{INDEX} names files of {lost[1]}, but not {lost[0]}: save it again", subject=lost[0]))


def _lost(shards: Iterable[str]) -> list[tuple[str, int]]:
    """Files that "1 of n" promises, whoever counts from 0, and however many digits the numbers have; each with its n."""
    numbered: dict[str, dict[int, int]] = {}  # by how n is written: a number, and its digits
    for match in filter(None, map(_WEIGHTS.fullmatch, shards)):
        if match[3]:
            numbered.setdefault(match[3], {})[int(match[2])] = len(match[2])
    found = []
    for total, known in numbered.items():
        if int(total) > 100_000:
            continue
        one, zero = (sorted(set(range(first, first + int(total))) - known.keys()) for first in (1, 0))
        digits = max(known.values())
        for number in one if len(one) <= len(zero) else zero:
            found.append((f"model-{number:0{digits}d}-of-{total}.safetensors", int(total)))
    return found


def _read_headers(contents: Contents, report: Report) -> None:
    for shard in contents.shards:
        try:
            spans = read_header(contents.reader, shard, contents.entries[shard].size)
        except SnapshotInvalid as fault:
            contents.whole = False
            report(fault)
            continue
        for name, span in spans.items():
            if contents.promised is None or contents.promised.get(name, shard) == shard:
                contents.spans[name], contents.files_of[name] = span, shard
        for unlike in _unlike_index(contents, shard, spans):
            report(unlike)
    if contents.whole and not contents.spans:
        empty = SINGLE if contents.promised is None else INDEX
        report(WeightsMissing(f"{empty} of checkpoint {contents.location} names no tensors", subject=empty))


def _unlike_index(contents: Contents, shard: str, spans: dict[str, TensorSpan]) -> Iterator[SnapshotInvalid]:
    promised: dict[str, Any] = {} if contents.promised is None else contents.promised
    for name, file in promised.items():
        if file == shard and name not in spans:
            message = f"{INDEX} promises tensor {name} in {shard}, which does not hold it: save the checkpoint again"
            yield IndexInvalid(message, subject=name)
    for name in spans:
        if contents.promised is not None and name not in promised:
            yield IndexInvalid(f"{shard} holds tensor {name}, which {INDEX} does not list: mend the index", subject=name)
        elif contents.promised is not None and promised[name] != shard:
            yield IndexInvalid(f"{shard} holds tensor {name}, which {INDEX} has in {promised[name]}", subject=name)

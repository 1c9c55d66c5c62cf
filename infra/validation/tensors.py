"""The tensors of a checkpoint are exactly those of the config's model: names, shapes, experts, head and vocabulary rows.

Of many tensors with one fault the first is named and the others counted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from infra.architecture import Architecture
from infra.errors import (
    ExpertMissing,
    HeadMissing,
    ShapeMismatch,
    SnapshotInvalid,
    TensorMissing,
    TensorUnexpected,
    TiedWeightsDiffer,
    VocabMismatch,
)
from infra.validation.layout import Contents, Report
from infra.validation.values import sample_of

_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(.+)")
_LAYER = re.compile(r"(?:^|.*\.)(?:layers|h|blocks)\.(\d+)\.")
_EMBEDDING = re.compile(r"(^|.*\.)(embed_tokens|wte|word_embeddings|embed_in)\.weight")
_HEAD = re.compile(r"(^|.*\.)(lm_head|embed_out)\.weight")


def check_tensors(contents: Contents, expected: Architecture, report: Report) -> None:
    held = contents.spans
    promised = max((expected.tensors, expected.fused), key=lambda names: len(names.keys() & held.keys()))
    if contents.whole:
        _refuse_missing(contents, expected, promised.keys() - held.keys(), report)
    extra = [name for name in held.keys() - promised.keys() - expected.tied.keys() if not _matches(name, expected.ignored)]
    if extra:
        problem = f"{_named(extra)} in {contents.location} is not one of the model's that config.json describes"
        report(TensorUnexpected(f"{problem}: remove it, or save the right config", subject=min(extra)))
    _refuse_shapes(contents, expected, promised, report)
    for name, source in expected.tied.items():
        if name in held and source in held and not _same(contents, name, source):
            message = f"tensor {name} differs from {source}, to which config.json ties it: set tie_word_embeddings to false"
            report(TiedWeightsDiffer(f"{message}, or leave {name} out", subject=name))


def _refuse_missing(contents: Contents, expected: Architecture, names: Iterable[str], report: Report) -> None:
    missing = {name for name in names if not _matches(name, expected.optional)}
    experts = {name for name in missing if _EXPERT.fullmatch(name)}
    place = contents.location
    if expected.head in missing:
        report(_head_missing(expected.head, place))
        missing.discard(expected.head)
    if experts:
        message = f"{_named(experts)} is missing from {place}: gather the experts of every expert-parallel rank"
        report(ExpertMissing(message, subject=min(experts)))
    if rest := missing - experts:
        message = f"{_named(rest)} is missing from {place}, but config.json describes it: save every rank's part again"
        report(TensorMissing(message, subject=min(rest)))


def _head_missing(head: str | None, place: str) -> HeadMissing:
    message = f"tensor {head} is missing from {place}, and config.json does not tie it to the embedding: save it"
    return HeadMissing(f"{message}, or set tie_word_embeddings to true if the model shares them", subject=str(head))


def _refuse_shapes(contents: Contents, expected: Architecture, promised: Mapping[str, tuple[int, ...]], report: Report) -> None:
    shapes = {**promised, **{name: promised[source] for name, source in expected.tied.items() if source in promised}}
    wrong = sorted(name for name in shapes.keys() & contents.spans.keys() if contents.spans[name].shape != shapes[name])
    ends = [name for name in wrong if name in expected.vocabulary and contents.spans[name].shape]
    rows = [name for name in ends if contents.spans[name].shape[1:] == shapes[name][1:]]
    for name in rows:
        report(_wrong_rows(name, contents.spans[name].shape[0], shapes[name][0]))
    rest = [name for name in wrong if name not in rows]
    if rest:
        got, want = list(contents.spans[rest[0]].shape), list(shapes[rest[0]])
        message = f"{_named(rest)} has shape {got} in {contents.location}, config.json makes it {want}"
        report(ShapeMismatch(f"{message}: save the config of this very model", subject=rest[0]))


def _wrong_rows(name: str, got: int, want: int) -> VocabMismatch:
    message = f"tensor {name} has {got} rows, config.json has vocab_size {want}"
    return VocabMismatch(f"{message}: cut the padding off, or correct vocab_size", subject=name)


def check_names(contents: Contents, config: Mapping[str, Any], report: Report) -> None:
    """What can be said of an architecture that transformers does not know: layers, experts, head and vocabulary rows."""
    if not contents.whole:
        return
    embedding = next(filter(_EMBEDDING.fullmatch, sorted(contents.spans)), None)
    head = next(filter(_HEAD.fullmatch, sorted(contents.spans)), None)
    size = config.get("vocab_size")
    for name in filter(None, (embedding, head)):
        if isinstance(size, int) and contents.spans[name].shape[:1] not in ((size,), ()):
            report(_wrong_rows(name, contents.spans[name].shape[0], size))
    if embedding and head is None and config.get("tie_word_embeddings") is False:
        report(_head_missing("lm_head.weight", contents.location))
    for fault in (_lost_layer(contents, config), _lost_expert(contents)):
        if fault is not None:
            report(fault)


def _lost_layer(contents: Contents, config: Mapping[str, Any]) -> SnapshotInvalid | None:
    found = {int(match[1]) for name in contents.spans if (match := _LAYER.match(name))}
    count = config.get("num_hidden_layers")
    lost = [n for n in range(count) if n not in found] if isinstance(count, int) and 0 < count <= 10_000 else []
    if not found or not lost:
        return None
    message = f"layer {lost[0]} of {count} is missing from {contents.location}: gather the layers of every pipeline rank"
    return TensorMissing(message, subject=f"layers.{lost[0]}")


def _lost_expert(contents: Contents) -> SnapshotInvalid | None:
    numbers: dict[str, set[int]] = defaultdict(set)
    parts: dict[str, set[str]] = defaultdict(set)
    for match in filter(None, map(_EXPERT.fullmatch, contents.spans)):
        numbers[match[1]].add(int(match[2]))
        parts[match[1]].add(match[3])
    most = max((max(found) for found in numbers.values()), default=-1)
    for prefix in sorted(numbers):
        for number in range(most + 1):
            for part in sorted(parts[prefix]):
                name = f"{prefix}{number}.{part}"
                if name not in contents.spans:
                    message = f"tensor {name} is missing from {contents.location}: gather every expert-parallel rank"
                    return ExpertMissing(message, subject=name)
    return None


def _same(contents: Contents, name: str, source: str) -> bool:
    """By what is sampled of both; a difference elsewhere is the engine's to find, which reads all."""
    one, other = contents.spans[name], contents.spans[source]
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return True  # another fault, with a name of its own
    return sample_of(contents, name) == sample_of(contents, source)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _named(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return f"tensor {first}" + (f" (and {len(others)} more)" if others else "")

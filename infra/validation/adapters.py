"""A LoRA adapter is valid only for its base: every tensor of it fits a weight that the base has, and there is at least one.

PEFT layout (https://huggingface.co/docs/peft/developer_guides/checkpoint): `adapter_config.json` and
`adapter_model.safetensors`, whose names are `base_model.model.` and the base's own, with `lora_A` and `lora_B` in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from infra.errors import (
    AdapterInvalid,
    AdapterUnmatched,
    PickleOnly,
    ShapeMismatch,
    TensorMissing,
    TensorUnexpected,
    WeightsMissing,
)
from infra.validation.headers import TensorSpan, read_header
from infra.validation.layout import CONFIG, Contents, Report, raise_it, read_contents
from infra.validation.readers import CheckpointReader
from infra.validation.resolve import open_checkpoint
from infra.validation.values import check_finite

# Of weights that an adapter can be merged into: their dtypes in files, and in torch.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
_PART = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(\.weight)?")
_MAGNITUDE = re.compile(r"(?P<module>.+)\.lora_magnitude_vector(\.weight)?")


def is_adapter(reader: CheckpointReader) -> bool:
    """Raises SnapshotMissing if there is nothing at all."""
    return ADAPTER_CONFIG in reader.entries()


def base_of(reader: CheckpointReader, given: str | None) -> CheckpointReader:
    """The base that was given, or that the adapter's own config names.

    Raises AdapterInvalid if there is none; ConfigError, SnapshotMissing as `open_checkpoint`.
    """
    named = given or read_adapter_config(reader).get("base_model_name_or_path")
    if not named:
        message = f"{ADAPTER_CONFIG} in {reader.location} names no base_model_name_or_path: save it, or give the base too"
        raise AdapterInvalid(message, subject=ADAPTER_CONFIG)
    return open_checkpoint(str(named))


def read_adapter_config(reader: CheckpointReader) -> Mapping[str, Any]:
    """Raises AdapterInvalid for a config that can't be read or is of another method than LoRA."""
    try:
        config = json.loads(reader.read_range(ADAPTER_CONFIG, 0, reader.entries()[ADAPTER_CONFIG].size).decode())
        kind, rank = str(config["peft_type"]).upper(), config["r"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"{ADAPTER_CONFIG} in {reader.location} can't be read as a LoRA adapter's: save the adapter again"
        raise AdapterInvalid(message, subject=ADAPTER_CONFIG) from None
    if kind != "LORA" or type(rank) is not int or rank < 1:
        message = f"{ADAPTER_CONFIG} has peft_type {kind} and r {rank!r}: only LoRA adapters with r of at least 1 are evaluated"
        raise AdapterInvalid(message, subject=ADAPTER_CONFIG)
    _refuse_scales(config, reader.location)
    return dict(config)


def _refuse_scales(config: Mapping[str, Any], place: str) -> None:
    """What merging needs: a number for every alpha, and patterns that are regular expressions."""
    alphas = config.get("alpha_pattern") or {}
    for name, value in {"lora_alpha": config.get("lora_alpha"), **alphas}.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            message = f"{ADAPTER_CONFIG} in {place} has no number for {name}, but {value!r:.40}: save the adapter again"
            raise AdapterInvalid(message, subject=ADAPTER_CONFIG)
    for pattern in alphas:
        try:
            re.compile(pattern)
        except re.error as error:
            message = f"{ADAPTER_CONFIG} in {place} has an alpha_pattern {pattern!r} that is no regular expression: {error}"
            raise AdapterInvalid(message, subject=ADAPTER_CONFIG) from None


def examine_adapter(reader: CheckpointReader, base: CheckpointReader, report: Report = raise_it) -> Contents:
    """Every fault of the adapter goes to `report`; `base` is a checkpoint that is valid by itself.

    Raises SnapshotMissing if there is nothing, AdapterInvalid or WeightsMissing if there is nothing to compare.
    """
    turned = bool(read_adapter_config(reader).get("fan_in_fan_out"))
    contents = read_adapter(reader)
    check_adapter(contents.spans, read_contents(base).spans, contents.location, report, turned=turned)
    check_finite(contents, report)
    return contents


def adapter_files(contents: Contents) -> list[str]:
    """All that makes up the adapter: its own tokenizer and chat template travel along."""
    return [*(name for name in contents.metadata if name != CONFIG), ADAPTER_CONFIG, ADAPTER_WEIGHTS]


def read_adapter(reader: CheckpointReader) -> Contents:
    """What is there, not compared with any base. Raises WeightsMissing, PickleOnly, or as `read_header`."""
    contents = Contents(reader=reader, entries=reader.entries())
    if ADAPTER_WEIGHTS not in contents.entries:
        if "adapter_model.bin" in contents.entries:
            message = f"adapter {contents.location} has only adapter_model.bin, which runs code when opened"
            raise PickleOnly(f"{message}: save it as {ADAPTER_WEIGHTS}", subject="adapter_model.bin")
        message = f"adapter {contents.location} has no {ADAPTER_WEIGHTS}: save it too"
        raise WeightsMissing(message, subject=ADAPTER_WEIGHTS)
    contents.spans = read_header(reader, ADAPTER_WEIGHTS, contents.entries[ADAPTER_WEIGHTS].size)
    contents.files_of = dict.fromkeys(contents.spans, ADAPTER_WEIGHTS)
    contents.shards = [ADAPTER_WEIGHTS]
    return contents


def check_adapter(
    held: Mapping[str, TensorSpan], base: Mapping[str, TensorSpan], place: str, report: Report, *, turned: bool = False
) -> None:
    """Reports each tensor that adapter `place` holds and that does not fit the tensors of its base.

    `turned`: linear weights of the base are (in, out), as GPT-2's.
    """
    sides: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, span in sorted(held.items()):
        own = name.removeprefix(PREFIX).replace(".base_layer.", ".")  # PEFT saves an adapted embedding whole, too
        part = _PART.fullmatch(own)
        if part:
            sides.setdefault(f"{part['module']}.weight", {})[(part["embedding"] or "") + part["side"]] = span.shape
        elif not (found := _MAGNITUDE.fullmatch(own)):
            _check_whole(name, own, span.shape, base, place, report)
        elif f"{found['module']}.weight" not in base:
            report(_unmatched(name, place))
    if not sides:
        message = f"adapter {place} holds no lora_A and lora_B: it would change nothing of its base"
        report(AdapterUnmatched(f"{message}; save the adapter that was trained", subject=ADAPTER_WEIGHTS))
    for weight, shapes in sides.items():
        if weight not in base:
            report(_unmatched(weight, place))
        elif base[weight].dtype not in ("", *DTYPES):  # a live base has none yet
            message = f"adapter {place} changes {weight}, which its base has as {base[weight].dtype}"
            report(AdapterUnmatched(f"{message}: name the base before it was quantised", subject=weight))
        else:
            _check_pair(weight, shapes, base[weight].shape, turned, place, report)


def _check_pair(
    weight: str, shapes: Mapping[str, tuple[int, ...]], whole: tuple[int, ...], turned: bool, place: str, report: Report
) -> None:
    """B x A has the shape of the weight, or its transpose: of an embedding, whose A is (r, rows), or if it is `turned`."""
    embedding = any(side.startswith("embedding_") for side in shapes)
    first, second = shapes.get("embedding_A" if embedding else "A"), shapes.get("embedding_B" if embedding else "B")
    if first is None or second is None:
        lost = "A" if first is None else "B"
        message = f"adapter {place} has only one of lora_A and lora_B for {weight}: lora_{lost} is missing, save it again"
        report(TensorMissing(message, subject=weight))
        return
    made = (second[0], first[1]) if len(first) == len(second) == 2 and first[0] == second[1] else None
    if made != (whole[::-1] if embedding or turned else whole):
        message = f"lora_A {list(first)} and lora_B {list(second)} of {weight} in {place} do not make {list(whole)}"
        report(ShapeMismatch(f"{message}: this adapter is of another base", subject=weight))


def _check_whole(
    name: str, own: str, shape: tuple[int, ...], base: Mapping[str, TensorSpan], place: str, report: Report
) -> None:
    """A module that was trained and saved whole (`modules_to_save`)."""
    if own not in base:
        message = f"tensor {name} in {place} is neither a LoRA part nor a tensor of the base: remove it"
        report(TensorUnexpected(message, subject=name))
    elif base[own].shape != shape:
        message = f"tensor {name} in {place} has shape {list(shape)}, its base has {list(base[own].shape)}"
        report(ShapeMismatch(f"{message}: this adapter is of another base", subject=name))


def _unmatched(name: str, place: str) -> AdapterUnmatched:
    message = f"adapter {place} adapts {name}, which its base does not have: it is of another base, or of other module names"
    return AdapterUnmatched(message, subject=name)

"""A safetensors header is believed only if it accounts for every byte of its file, once, in known dtypes.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.errors import DtypeUnknown, FileDamaged, SpansBroken
from infra.validation.readers import CheckpointReader

MAX_HEADER_BYTES = 100 * 2**20
FIRST_READ_BYTES = 64 * 2**10  # most headers fit, so one request is enough
# https://docs.rs/safetensors/latest/safetensors/tensor/enum.Dtype.html
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan:
    """Where a tensor lies in its file: [begin, end) in bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(reader: CheckpointReader, name: str, size: int) -> dict[str, TensorSpan]:
    """The tensors of a safetensors file of `size` bytes.

    Raises:
        FileDamaged: a header that can't be read, or promises more or fewer bytes than the file has.
        DtypeUnknown: a tensor whose dtype is none of the format's.
    """
    first = reader.read_range(name, 0, min(size, FIRST_READ_BYTES))
    length = struct.unpack("<Q", first[:8])[0] if len(first) >= 8 else MAX_HEADER_BYTES + 1
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise FileDamaged(f"{name} is truncated or is not a safetensors file: save or copy it again", subject=name)
    start = 8 + length
    raw = first[8:start] if start <= len(first) else reader.read_range(name, 8, start)
    try:
        header: dict[str, Any] = json.loads(raw.decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        raise FileDamaged(f"{name} has an unreadable safetensors header: save or copy it again", subject=name) from None
    try:
        spans = {tensor: _span(entry, start) for tensor, entry in header.items() if tensor != "__metadata__"}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise FileDamaged(f"{name} has a safetensors header that describes no tensors", subject=name) from None
    _account(name, size, start, spans)
    return spans


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _span(entry: dict[str, Any], start: int) -> TensorSpan:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not 0 <= begin <= end or any(type(n) is not int or n < 0 for n in (begin, end, *shape)):
        raise ValueError(begin, end)
    return TensorSpan(dtype=str(entry["dtype"]), shape=shape, begin=start + begin, end=start + end)


def _account(file: str, size: int, start: int, spans: Mapping[str, TensorSpan]) -> None:
    end = max((span.end for span in spans.values()), default=start)
    if end != size:
        raise FileDamaged(
            f"{file} has {size} bytes, its header accounts for {end}: the file is truncated or damaged, copy it again",
            subject=file,
        )
    position = start
    for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end)):
        if span.begin != position:
            problem = "overlaps the one before it" if span.begin < position else "leaves a gap before it"
            raise SpansBroken(f"tensor {name} in {file} {problem}: save the checkpoint again", subject=name)
        if span.dtype not in BITS:
            raise DtypeUnknown(f"tensor {name} in {file} has the unknown dtype {span.dtype}", subject=name)
        if (span.end - span.begin) * 8 != math.prod(span.shape) * BITS[span.dtype]:
            message = f"tensor {name} in {file} has {span.end - span.begin} bytes, not those of {span.dtype} {list(span.shape)}"
            raise SpansBroken(f"{message}: save the checkpoint again", subject=name)
        position = span.end


def floating(spans: Mapping[str, TensorSpan]) -> Iterator[tuple[str, TensorSpan]]:
    return ((name, span) for name, span in spans.items() if span.dtype[0] in "FB" and span.dtype != "BOOL")

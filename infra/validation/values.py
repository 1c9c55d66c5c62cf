"""Weights are of one floating dtype, the config's, and what is sampled of each tensor is finite.

A sample is the first, middle and last `SAMPLE_BYTES` of a tensor: an optimizer that diverged leaves NaN everywhere, and no
sampling finds a single one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from infra.errors import DtypeMismatch, NotFinite
from infra.validation.headers import BITS, TensorSpan, floating
from infra.validation.layout import Contents, Report
from infra.validation.readers import Range

SAMPLE_BYTES = 4096
CHOICES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "float": "F32", "half": "F16"}
# A value is NaN or infinite when all bits of its exponent are set; of E4M3 only all bits are, and that is NaN.
EXPONENT: Mapping[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E5M2": ("u1", 0x7C),
    "F8_E4M3": ("u1", 0x7F),
}


def check_dtypes(contents: Contents, config: Mapping[str, Any], float32: Iterable[str], report: Report) -> None:
    """Names that match `float32` may be in it, whatever the rest is: their model keeps them in it, or ignores them."""
    kept = re.compile("|".join(float32) or r"(?!)")
    spans = {n: s for n, s in floating(contents.spans) if not (s.dtype == "F32" and kept.search(n))}
    if not spans or config.get("quantization_config"):
        return
    counts = Counter(span.dtype for span in spans.values())
    stated = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    want = CHOICES.get(stated) or counts.most_common(1)[0][0]
    wrong = sorted(name for name, span in spans.items() if span.dtype != want)
    if wrong:
        others = f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
        why = f"config.json says {stated}" if stated else f"most others are {want}"
        message = f"tensor {wrong[0]}{others} in {contents.location} is {spans[wrong[0]].dtype}, {why}"
        report(DtypeMismatch(f"{message}: save all weights in one dtype, and name it in config.json", subject=wrong[0]))


def check_finite(contents: Contents, report: Report) -> str:
    """Says what was not looked at; "" if every tensor was."""
    spans = {name: span for name, span in floating(contents.spans) if span.dtype in EXPONENT}
    chosen, note = _within(contents.reader.max_reads, sorted(spans))
    pieces = [(name, piece) for name in chosen for piece in _pieces(contents.files_of[name], spans[name])]
    bad: dict[str, None] = {}
    data = contents.reader.read_ranges([piece for _, piece in pieces])
    for (name, _), raw in zip(pieces, data, strict=True):
        if not _finite(raw, spans[name].dtype):
            bad[name] = None
    if bad:
        first, *others = bad
        more = f" (and {len(others)} more)" if others else ""
        message = f"tensor {first}{more} in {contents.location} holds NaN or infinity: the run diverged, or the copy is damaged"
        report(NotFinite(f"{message}; take an earlier checkpoint", subject=first))
    return note


def _within(max_reads: int, names: list[str]) -> tuple[list[str], str]:
    step = -(-3 * len(names) // max_reads)
    if step <= 1:
        return names, ""
    return names[::step], f"NaN was looked for in one tensor of {step} only, as there are {len(names)}"


def sample_of(contents: Contents, name: str) -> list[bytes]:
    return list(contents.reader.read_ranges(_pieces(contents.files_of[name], contents.spans[name])))


def _pieces(file: str, span: TensorSpan) -> list[Range]:
    size = span.end - span.begin
    if size <= 3 * SAMPLE_BYTES:
        return [Range(file, span.begin, span.end)]
    width = BITS[span.dtype] // 8
    middle = span.begin + size // 2 // width * width
    starts = (span.begin, middle, span.end - SAMPLE_BYTES)
    return [Range(file, start, start + SAMPLE_BYTES) for start in starts]


def _finite(raw: bytes, dtype: str) -> bool:
    kind, mask = EXPONENT[dtype]
    values = np.frombuffer(raw, dtype=kind)
    return not bool(np.any(values & values.dtype.type(mask) == mask))

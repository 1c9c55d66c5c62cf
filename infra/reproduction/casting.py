"""A tensor's bytes in the dtype in which an engine serves it: to the nearest, and to even between two, as torch casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from infra.validation.headers import BITS

Array = np.ndarray[Any, Any]
CASTS = {"F32": ("F32", "F16", "BF16"), "BF16": ("BF16", "F16"), "F16": ("F16", "BF16")}


def served_dtypes(dtype: str) -> tuple[str, ...]:
    """Those a tensor can be cast to, its own first."""
    return CASTS.get(dtype, (dtype,))


def cast(raw: bytes, dtype: str, served: str) -> Array:
    """The elements, one after the other, as unsigned numbers of their width."""
    if dtype == served:
        return np.frombuffer(raw, f"<u{max(1, BITS[dtype] // 8)}")
    wide = _float32(raw, dtype)
    if served == "F16":
        with np.errstate(over="ignore"):
            return wide.astype("<f2").view("<u2")
    bits = wide.view("<u4")
    nearest: Array = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return nearest.astype("<u2")


def _float32(raw: bytes, dtype: str) -> Array:
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4", copy=False)

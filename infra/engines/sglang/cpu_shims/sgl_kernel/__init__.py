"""Stands in for SGLang's kernels, which a CPU engine imports and never calls: one that is called all the same says so."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} was called, but sgl_kernel is not installed in this environment")

    return absent

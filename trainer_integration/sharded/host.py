"""A tensor's bytes reach the file as they lie in memory, in pieces of bounded size, cast on the way if that is asked for.

From an accelerator they come through two pinned buffers: while one is written, the other is being filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from infra.errors import ConfigError

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 2**25


@cache
def torch_dtypes() -> dict[str, Any]:
    """torch's dtypes by safetensors' names for them. Source: safetensors.torch."""
    import torch

    names = {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "I64": "int64",
        "I32": "int32",
        "I16": "int16",
        "I8": "int8",
        "U8": "uint8",
        "BOOL": "bool",
    }
    return {name: getattr(torch, kind) for name, kind in names.items()}


def name_of(dtype: Any, subject: str) -> str:
    """Raises ConfigError for a dtype that is not staged; `subject` is whose it is."""
    for name, kind in torch_dtypes().items():
        if kind == dtype:
            return name
    raise ConfigError(f"{subject} is {dtype}, which can't be staged: export it in bfloat16")


def host_bytes(values: torch.Tensor, dtype: torch.dtype, multiple: int) -> Iterator[memoryview]:
    """The bytes of a flat tensor in `dtype`, in order; each piece has a multiple of `multiple` elements."""
    step = max(CHUNK_BYTES // dtype.itemsize // multiple, 1) * multiple
    pieces = (values[start : start + step].to(dtype) for start in range(0, values.numel(), step))
    if values.is_cuda:
        yield from _through_pinned(pieces, step, dtype)
    else:
        yield from map(as_bytes, pieces)


def as_bytes(values: torch.Tensor) -> memoryview:
    """Of a flat tensor in host memory, without a copy."""
    import torch

    return memoryview(values.contiguous().view(torch.uint8).numpy())


def _through_pinned(pieces: Iterator[torch.Tensor], step: int, dtype: torch.dtype) -> Iterator[memoryview]:
    import torch

    buffers = [torch.empty(step, dtype=dtype, pin_memory=True) for _ in range(2)]
    waiting: tuple[torch.Tensor, torch.cuda.Event] | None = None
    for number, piece in enumerate(pieces):
        filled = buffers[number % 2][: piece.numel()]
        filled.copy_(piece, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        if waiting is not None:
            waiting[1].synchronize()
            yield as_bytes(waiting[0])
        waiting = filled, event
    if waiting is not None:
        waiting[1].synchronize()
        yield as_bytes(waiting[0])

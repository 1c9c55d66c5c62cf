"""A checkpoint is read whole or refused whole: the names, shapes and dtypes must be exactly those of the live model.

Which files those are is `infra.validation`'s to say, as for an export, so both read the same ones. Headers are checked
before any data is read. Files are read into memory, never mapped: a file that is cut short or deleted under a mapping
would kill the process, and the trainer's retention may delete it at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as decode_safetensors

from infra.errors import ConfigInvalid, SnapshotInvalid, TokenizerInvalid
from infra.validation.layout import read_contents
from infra.validation.readers import LocalFolder

# https://github.com/huggingface/safetensors#format
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    shape: tuple[int, ...]
    dtype: torch.dtype | str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), tensor.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Every tensor of the model in host memory; `repeated` names the tied ones that the checkpoint held besides."""

    tensors: dict[str, torch.Tensor]
    repeated: frozenset[str]


def read_checkpoint(folder: Path, expected: Mapping[str, TensorSpec], tied: Mapping[str, str]) -> Weights:
    """Every tensor of `expected`; `tied` maps a name that may be there to the one it must repeat.

    Raises:
        SnapshotMissing: no such folder.
        SnapshotInvalid: anything else than exactly this model's tensors; `subject` is the tensor or file.
    """
    try:
        contents = read_contents(LocalFolder(folder), _refuse_weights)
    except OSError as error:
        raise SnapshotInvalid(f"{folder} can't be read: {error.strerror}", subject=folder.name) from error
    headers = {name: TensorSpec(span.shape, DTYPES.get(span.dtype, span.dtype)) for name, span in contents.spans.items()}
    _check(headers, expected, tied, folder)
    tensors = {name: tensor for shard in contents.shards for name, tensor in _load(folder / shard).items()}
    # Again, on what was really read: the files may have been replaced between the two reads.
    _check({name: TensorSpec.of(tensor) for name, tensor in tensors.items()}, expected, tied, folder)
    repeated = frozenset(tied.keys() & tensors.keys())
    for name in sorted(repeated):
        if not torch.equal(raw_bytes(tensors[name]), raw_bytes(tensors[tied[name]])):
            raise SnapshotInvalid(f"tensor {name} differs from {tied[name]}, to which the model ties it", subject=name)
    return Weights(tensors={name: tensors[name] for name in expected}, repeated=repeated)


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """As uint8, in one dimension: NaN equals itself here, and 0.0 is not -0.0."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _refuse_weights(fault: SnapshotInvalid) -> None:
    """A config or tokenizer that is missing is no fault here: an update keeps those of the start."""
    if not isinstance(fault, ConfigInvalid | TokenizerInvalid):
        raise fault


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = decode_safetensors(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise SnapshotInvalid(f"{path} can't be read as safetensors: {error}", subject=path.name) from error
    return tensors


def _check(found: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec], tied: Mapping[str, str], folder: Path) -> None:
    _refuse_any(expected.keys() - found.keys(), "is missing from", folder)
    _refuse_any(found.keys() - expected.keys() - tied.keys(), "is not one of this model's, but is in", folder)
    wanted = {**expected, **{name: expected[source] for name, source in tied.items() if name in found}}
    for name, spec in wanted.items():
        if found[name].shape != spec.shape:
            message = f"tensor {name} has shape {list(found[name].shape)} in {folder}, the model has {list(spec.shape)}"
            raise SnapshotInvalid(message, subject=name)
        if found[name].dtype != spec.dtype:
            message = f"tensor {name} is {found[name].dtype} in {folder}, the model is {spec.dtype}"
            raise SnapshotInvalid(message, subject=name)


def _refuse_any(names: Iterable[str], problem: str, folder: Path) -> None:
    first, *rest = sorted(names) or [""]
    if first:
        others = f" (and {len(rest)} more)" if rest else ""
        raise SnapshotInvalid(f"tensor {first}{others} {problem} {folder}", subject=first)

"""A checkpoint is read whole or refused whole: the names, shapes and dtypes must be exactly those of the live model.

Headers are checked before any data is read. Files are read into memory, never mapped: a file that is cut short or
deleted under a mapping would kill the process, and the trainer's retention may delete it at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as decode_safetensors

from infra.errors import SnapshotInvalid, SnapshotMissing

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
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


def read_checkpoint(folder: Path, expected: Mapping[str, TensorSpec], tied: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Every tensor of `expected`, in host memory; `tied` maps a name that may be there to the one it must repeat.

    Raises:
        SnapshotMissing: no such folder.
        SnapshotInvalid: anything else than exactly this model's tensors; `subject` is the tensor or file.
    """
    files = _weight_files(folder)
    _check({name: spec for path in files for name, spec in _headers(path).items()}, expected, tied, folder)
    tensors = {name: tensor for path in files for name, tensor in _load(path).items()}
    # Again, on what was really read: the files may have been replaced between the two reads.
    _check({name: TensorSpec.of(tensor) for name, tensor in tensors.items()}, expected, tied, folder)
    for name, source in tied.items():
        if name in tensors and not torch.equal(tensors[name], tensors[source]):
            raise SnapshotInvalid(f"tensor {name} differs from {source}, to which the model ties it", subject=name)
    return {name: tensors[name] for name in expected}


def _weight_files(folder: Path) -> list[Path]:
    try:
        return _find_weight_files(folder)
    except PermissionError as error:
        raise SnapshotInvalid(f"{folder} may not be read: {error.strerror}", subject=folder.name) from error


def _find_weight_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise SnapshotMissing(f"no checkpoint folder {folder}")
    if (folder / SINGLE_FILE).exists():
        return [folder / SINGLE_FILE]
    if (folder / INDEX_FILE).exists():
        return _shards(folder / INDEX_FILE)
    raise SnapshotInvalid(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}: save it as safetensors", subject=SINGLE_FILE)


def _shards(index: Path) -> list[Path]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotInvalid(f"{index} is not a safetensors index: {error!r}", subject=index.name) from error
    files = [index.parent / str(name) for name in names]
    for path in files:
        if path.parent != index.parent or not path.is_file():
            raise SnapshotInvalid(f"{index.name} names {path.name}, which is not in {index.parent}", subject=path.name)
    found = {name: path.name for path in files for name in _headers(path)}
    for name in sorted(found.keys() ^ weight_map.keys()):
        raise SnapshotInvalid(f"tensor {name} is in the index or in a shard, but not in both", subject=name)
    return files


def _headers(path: Path) -> dict[str, TensorSpec]:
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no __iter__)
            return {
                name: TensorSpec(tuple(piece.get_shape()), DTYPES.get(piece.get_dtype(), piece.get_dtype()))
                for name, piece in slices.items()
            }
    except (OSError, SafetensorError) as error:
        raise SnapshotInvalid(f"{path} can't be read as safetensors: {error}", subject=path.name) from error


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = decode_safetensors(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise SnapshotInvalid(f"{path} can't be read as safetensors: {error}", subject=path.name) from error
    return tensors


def _check(found: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec], tied: Mapping[str, str], folder: Path) -> None:
    _refuse_any(expected.keys() - found.keys(), "is missing from", folder)
    _refuse_any(found.keys() - expected.keys() - tied.keys(), "is not one of this model's, but is in", folder)
    for name, spec in expected.items():
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

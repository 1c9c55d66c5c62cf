"""A LoRA adapter is served merged into its base: the merged checkpoint is complete, and proved tensor by tensor like any other.

W + scale x B A, in float32, in the base's own dtype and files; scale is alpha / r, or alpha / sqrt(r) with `use_rslora`. DoRA
rescales each row to its trained magnitude (https://arxiv.org/abs/2402.09353). The names are PEFT's. One tensor is in memory at
a time. What was merged into is the base that the adapter's manifest names, by digest, or nothing is.
"""

from __future__ import annotations

import math
import re
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.digests import FileDigest, digest_file
from infra.errors import SnapshotInvalid, SnapshotMissing
from infra.model import EvalPoint, FileEntry, Manifest, TensorEntry
from infra.snapshot import assemble, describe
from infra.validation.adapters import ADAPTER_WEIGHTS, DTYPES, PREFIX, read_adapter_config
from infra.validation.headers import TensorSpan, read_header
from infra.validation.layout import CONFIG, METADATA, read_contents
from infra.validation.readers import LocalFolder

if TYPE_CHECKING:
    import torch


def merge(base: Path, adapter: Path, base_digest: str, target: Path, point: EvalPoint) -> Manifest:
    """Writes the merged checkpoint to `target`, a new folder, and gives the manifest of what is there.

    Raises SnapshotMissing if the base is not on this machine, SnapshotInvalid if it is another than `base_digest` says.
    """
    if not base.is_dir():
        remedy = "copy the base to the same path on every node that has engines"
        raise SnapshotMissing(f"the adapter's base {base} is not on this machine: {remedy}")
    contents = read_contents(LocalFolder(base))
    target.mkdir(parents=True)
    changes, files, tensors = _Changes(adapter), dict[str, FileEntry](), dict[str, TensorEntry]()
    for name in contents.files:
        digest = _merge_file(base / name, target / name, changes) if name in contents.shards else _copy(base, name, target)
        files[name] = digest.entry
        tensors |= digest.tensors
    found = assemble(files, tensors, point).snapshot_digest
    if found != base_digest:
        message = f"base {base} has digest {found}, the adapter was exported for {base_digest}: it has changed since"
        raise SnapshotInvalid(message, subject=str(base))
    for name in METADATA:
        if name != CONFIG and (adapter / name).is_file():
            shutil.copyfile(adapter / name, target / name)
    return describe(target, read_contents(LocalFolder(target)).files, point)


def _copy(base: Path, name: str, target: Path) -> FileDigest:
    shutil.copyfile(base / name, target / name)
    return digest_file(base / name)


def _merge_file(source: Path, target: Path, changes: _Changes) -> FileDigest:
    """The same header, so the same names, shapes and dtypes; gives the digest of the file that was read."""
    digest, size = FileDigest(source), source.stat().st_size
    spans = read_header(LocalFolder(source.parent), source.name, size)
    with source.open("rb") as reader, target.open("wb") as writer:
        length = 8 + struct.unpack("<Q", reader.read(8))[0]
        reader.seek(0)
        head = reader.read(length)
        digest.update(memoryview(head))
        writer.write(head)
        for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end)):
            raw = reader.read(span.end - span.begin)
            digest.update(memoryview(raw))
            writer.write(changes.applied(name, span, raw))
    return digest


class _Changes:
    """What an adapter makes of a tensor of its base."""

    def __init__(self, adapter: Path) -> None:
        from safetensors.torch import load_file

        self.config: Mapping[str, Any] = read_adapter_config(LocalFolder(adapter))
        held = load_file(adapter / ADAPTER_WEIGHTS)
        self.held = {name.removeprefix(PREFIX).replace(".base_layer.", "."): tensor for name, tensor in held.items()}

    def applied(self, name: str, span: TensorSpan, raw: bytes) -> bytes:
        """The tensor's bytes, changed if the adapter has anything of it."""
        import torch

        module = name.removesuffix(".weight")
        delta = self._delta(module)
        if name not in self.held and delta is None:
            return raw
        dtype = getattr(torch, DTYPES[span.dtype])
        weight = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(span.shape).float()
        weight = self.held[name].float() if name in self.held else weight
        if delta is not None:
            weight = self._rescaled(module, weight + delta)
        merged = weight.to(dtype).contiguous()
        return bytes(merged.view(torch.uint8).numpy().tobytes()) if merged.numel() else b""

    def _delta(self, module: str) -> torch.Tensor | None:
        """float32, in the weight's own shape."""
        scale = self._scale(module)
        for first, second, turned in (
            (f"{module}.lora_A.weight", f"{module}.lora_B.weight", bool(self.config.get("fan_in_fan_out"))),
            (f"{module}.lora_embedding_A", f"{module}.lora_embedding_B", True),
        ):
            if first in self.held:
                made = self.held[second].float() @ self.held[first].float() * scale(self.held[first].shape[0])
                return made.T if turned else made
        return None

    def _scale(self, module: str) -> Any:
        alpha = self.config.get("alpha_pattern") or {}
        matched = next((key for key in alpha if re.match(rf"(.*\.)?({key})$", module)), None)
        value = float(alpha[matched] if matched is not None else self.config["lora_alpha"])
        return lambda rank: value / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def _rescaled(self, module: str, weight: torch.Tensor) -> torch.Tensor:
        for name in (f"{module}.lora_magnitude_vector", f"{module}.lora_magnitude_vector.weight"):
            if name in self.held:
                return self.held[name].float().reshape(-1, 1) * weight / weight.norm(p=2, dim=1, keepdim=True)
        return weight

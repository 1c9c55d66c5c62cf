"""mbridge, an independent converter, on the same live model: what it yields is what has to be staged.

Source: mbridge 0.15.1. One bridge a process: a tied one changes the mapping of later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from mbridge.core.parallel_states import ParallelStates
from mbridge.models.qwen3 import Qwen3Bridge

from tests.megatron.cases import SHARD_BYTES, Case, built, files_for, hf_config
from tests.megatron.cpu_model import PADDED_TO, no_cuda, padded
from trainer_integration.megatron.exporter import MegatronExporter
from trainer_integration.sharded.converter import ConverterExporter


class LocalSpecBridge(Qwen3Bridge):  # type: ignore[misc]
    """Knows the norms by the names they have without Transformer Engine, too."""

    _ATTENTION_MAPPING = Qwen3Bridge._ATTENTION_MAPPING
    _DIRECT_MAPPING = Qwen3Bridge._DIRECT_MAPPING

    def _weight_name_mapping_mcore_to_hf(self, name: str) -> list[str]:
        for ours, theirs in (("input_layernorm", "input_layernorm"), ("pre_mlp_layernorm", "post_attention_layernorm")):
            if name.endswith(f".{ours}.weight"):
                return [f"model.layers.{name.split('.')[2]}.{theirs}.weight"]
        found: list[str] = super()._weight_name_mapping_mcore_to_hf(name)
        return found


def bridged(case: Case, chunks: list[Any]) -> Iterator[tuple[str, Any]]:
    config = hf_config(case)
    bridge = LocalSpecBridge(config, torch.float32, ParallelStates.get_parallel_state(), PADDED_TO)
    bridge.vocab_size, bridge.padded_vocab_size = config.vocab_size, padded(config.vocab_size, case.tp)
    yield from bridge.export_weights(chunks)


def by_both(rank: int, root: str, case: Case) -> None:
    """Exports by our mapping, and by the exporter that takes what mbridge yields."""
    with no_cuda():
        chunks = built(case)
        files = files_for(hf_config(case))
        MegatronExporter(chunks, files, shard_bytes=SHARD_BYTES)(Path(root) / "ours")
        converted = ConverterExporter(lambda: bridged(case, chunks), files, dtype="float32", shard_bytes=SHARD_BYTES)
        converted(Path(root) / "theirs")
        in_half = MegatronExporter(chunks, files, dtype="bfloat16", shard_bytes=SHARD_BYTES)
        in_half(Path(root) / "bfloat16")

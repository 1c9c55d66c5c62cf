"""With `overlap_param_gather` a rank has, after a step, only its own part of it: an export gathers the rest first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_integration.megatron.exporter import MegatronExporter, gathering_late
from trainer_integration.sharded.exporter import StagedExporter
from trainer_integration.sharded.ranks import Ranks


class Wrapper:
    """What Megatron-Core's DistributedDataParallel has of it."""

    def __init__(self, module: Any, late: bool, done: list[str]) -> None:
        self.module, self.done, self.ddp_config = module, done, SimpleNamespace(overlap_param_gather=late)

    def start_param_sync(self, *, force_sync: bool) -> None:
        assert force_sync
        self.done.append("gathered")


def test_it_is_gathered_before_anything_is_read_and_only_where_it_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    chunks = [Wrapper(SimpleNamespace(config=None), late, done) for late in (True, False)]
    monkeypatch.setattr(StagedExporter, "__call__", lambda self, folder: done.append("read"))
    made = MegatronExporter.__new__(MegatronExporter)
    made.ranks, made._late = Ranks.alone(), gathering_late([SimpleNamespace(module=chunks[0]), chunks[1]])
    made(tmp_path)
    assert done == ["gathered", "read"]
    assert gathering_late(SimpleNamespace(config=None)) == []

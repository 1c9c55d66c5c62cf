"""A saved LoRA adapter is known by its own content and by that of its base."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from infra.model import Care
from infra.saved.identity import checkpoint_digest
from infra.saved.scan import scan
from infra.saved.settled import look
from infra.store import Store
from tests.infra import models
from tests.infra.adapters import make_adapter


def test_an_adapter_is_another_checkpoint_under_another_base(tmp_path: Path) -> None:
    base = models.model("untied Qwen3", tmp_path / "base")
    make_adapter(base, tmp_path / "run" / "checkpoint-5")
    store, [saved] = Store((tmp_path / "store").as_uri()), scan([str(tmp_path / "run")])

    def digest(*, read: bool) -> str | None:
        standing = look(saved, Care(settle_s=0), time.time())
        assert standing.settled == "unchanged", standing
        return checkpoint_digest(store, saved, standing, read=read)

    assert digest(read=False) is None
    first = digest(read=True)
    assert digest(read=False) == first
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", 0.5))
    assert digest(read=True) not in (None, first)

"""An adapter is served merged into its base, as PEFT merges it, and into no other base than the one it was exported for."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from infra.adapters import merge
from infra.errors import SnapshotInvalid, SnapshotMissing
from infra.snapshot import describe, validate
from infra.validation.examination import faults
from infra.validation.readers import LocalFolder
from tests.infra import models
from tests.infra.adapters import make_adapter
from tests.infra.examples import POINT

KINDS: dict[str, dict[str, Any]] = {
    "linear": {},
    "embedding, and head trained whole": {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]},
    "ranks and alphas of their own": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 32}},
    "rank-stabilised": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "all layers": {"target_modules": "all-linear"},
}


@pytest.fixture(params=["untied Qwen3", "sharded Qwen3", "bfloat16 Qwen3"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return models.model(request.param, tmp_path / "base")


def digest_of(folder: Path) -> str:
    return describe(folder, validate(folder), POINT).snapshot_digest


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_merged_is_what_peft_merges(base: Path, tmp_path: Path, kind: str) -> None:
    import peft
    import torch
    import transformers

    adapter = make_adapter(base, tmp_path / "adapter", **KINDS[kind])
    manifest = merge(base, adapter, digest_of(base), tmp_path / "merged", POINT)
    assert faults(LocalFolder(tmp_path / "merged")) == []
    assert manifest == describe(tmp_path / "merged", validate(tmp_path / "merged"), POINT)
    loaded = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), adapter)
    expected = loaded.merge_and_unload().state_dict()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    assert merged.keys() == expected.keys()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, expected[name], rtol=tolerance[tensor.dtype], atol=tolerance[tensor.dtype])


def test_what_is_merged_differs_from_the_base_in_what_was_adapted_alone(tmp_path: Path) -> None:
    base = models.model("untied Qwen3", tmp_path / "base")
    adapter = make_adapter(base, tmp_path / "adapter")
    merged = merge(base, adapter, digest_of(base), tmp_path / "merged", POINT)
    own = describe(base, validate(base), POINT)
    changed = {name for name, entry in merged.tensors.items() if entry.digest != own.tensors[name].digest}
    assert changed == {name for name in own.tensors if "q_proj" in name or "down_proj" in name}


def test_a_base_that_has_changed_since_the_export_is_refused(tmp_path: Path) -> None:
    base = models.model("untied Qwen3", tmp_path / "base")
    adapter, digest = make_adapter(base, tmp_path / "adapter"), digest_of(base)
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", 0.25))
    with pytest.raises(SnapshotInvalid, match="it has changed since"):
        merge(base, adapter, digest, tmp_path / "merged", POINT)


def test_a_base_that_is_not_on_this_machine_is_named(tmp_path: Path) -> None:
    base = models.model("untied Qwen3", tmp_path / "base")
    adapter = make_adapter(base, tmp_path / "adapter")
    with pytest.raises(SnapshotMissing, match="copy the base to the same path"):
        merge(tmp_path / "elsewhere", adapter, digest_of(base), tmp_path / "merged", POINT)

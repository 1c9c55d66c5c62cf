"""Base and adapter, staged apart from a Megatron model with LoRA, give its logits under PEFT; what can't is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from infra.validation.adapters import examine_adapter
from infra.validation.readers import LocalFolder
from tests.megatron.adapters import ALPHA, CASES, CONTROLS, RANK, adapters_exported
from tests.megatron.cases import Case, loaded_logits, prompts
from tests.megatron.test_logits import TOLERANCE
from tests.services.ranks import listing, on_ranks

pytestmark = pytest.mark.slow
REFUSALS = {
    "no adapter": "the live model's) holds no lora_A and lora_B",
    "a name": "rank 1: ConfigError: no PEFT tensor for adapter parameter decoder.layers.2.mlp.linear_fc2.adapter.weight_mag",
    "a norm is trained": "rank 1: ConfigError: decoder.layers.2.input_layernorm.weight is trained",
    "alpha": "decoder.layers.2.mlp.linear_fc2.adapter has alpha 7, the exporter was given alpha=6",
    "a shape": "decoder.layers.2.mlp.linear_fc2.adapter.linear_out.weight of shape [63, 4] is neither all nor one of 2 parts",
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    root = tmp_path_factory.mktemp("adapters")
    return root, on_ranks(4, adapters_exported, str(root))


def adapted_logits(base: Path, adapter: Path) -> tuple[Any, set[str]]:
    """Of PEFT, with the names that it has in the adapter."""
    from peft import PeftModel, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(plain, str(adapter))
    with torch.no_grad():
        return model(prompts()).logits.numpy(), set(get_peft_model_state_dict(model))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_base_and_adapter_give_the_live_models_logits(case: Case, exports: tuple[Path, list[dict[str, Any]]]) -> None:
    root, results = exports
    live = [result[case.id] for result in results if result[case.id] is not None]
    base, adapter = root / case.id / "base", root / case.id / "adapter"
    found, names = adapted_logits(base, adapter)
    assert len(live) == 4 // case.pp
    for seen in live:
        assert np.abs(found - seen).max() < TOLERANCE
        assert np.abs(loaded_logits(base)[0] - seen).max() > 100 * TOLERANCE
    assert listing(adapter) == ["adapter_config.json", "adapter_model.safetensors"]
    tensors = load_file(adapter / "adapter_model.safetensors")
    assert set(tensors) == names
    assert "base_model.model.model.layers.3.self_attn.k_proj.lora_A.weight" in names
    examine_adapter(LocalFolder(adapter), LocalFolder(base))
    in_half = load_file(root / case.id / "bfloat16" / "adapter_model.safetensors")
    assert all(torch.equal(in_half[name], tensor.bfloat16()) for name, tensor in tensors.items())


def test_the_config_says_what_was_trained_and_the_header_upon_which_base(exports: tuple[Path, list[dict[str, Any]]]) -> None:
    folder = exports[0] / CASES[0].id / "adapter"
    config = json.loads((folder / "adapter_config.json").read_text())
    expected = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "base_model_name_or_path": "some/base"}
    assert {name: config[name] for name in expected} == expected
    assert config["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "base_digest": "d1"}


def test_layers_that_have_no_adapter_get_none_from_peft_either(exports: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, results = exports[0] / "later layers", exports[1]
    found, names = adapted_logits(folder / "base", folder / "adapter")
    live = next(result["later layers"] for result in results if result["later layers"] is not None)
    assert np.abs(found - live).max() < TOLERANCE
    assert set(load_file(folder / "adapter" / "adapter_model.safetensors")) == names
    assert {name.split(".")[4] for name in names} == {"3"}


@pytest.mark.parametrize("control", CONTROLS)
def test_an_adapter_is_told_from_the_right_one_when_spoiled_because(
    control: str, exports: tuple[Path, list[dict[str, Any]]]
) -> None:
    root, results = exports
    found, _ = adapted_logits(root / "base of controls", root / control)
    difference = np.abs(found - results[0]["controls"]).max()
    assert (difference < TOLERANCE) == (control == "nothing"), difference


@pytest.mark.parametrize("cause", REFUSALS)
def test_an_adapter_that_peft_has_no_place_for_is_refused_on_all_ranks_because_of(
    cause: str, exports: tuple[Path, list[dict[str, Any]]]
) -> None:
    outcomes = [result["refused"][cause] for result in exports[1]]
    assert len(set(outcomes)) == 1
    assert outcomes[0].startswith("StagingFailed")
    assert REFUSALS[cause] in outcomes[0]
    assert outcomes[0].endswith("[]")
    assert exports[1][0]["refused"]["nothing"] == "exported"

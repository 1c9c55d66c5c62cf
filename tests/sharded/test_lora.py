"""A merged export computes what the live model with its adapters does, or is refused, and the error names the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from infra.errors import PinpointError
from tests.sharded.models import files_of, model_of, with_adapter
from trainer_integration.sharded.lora import AdapterExporter, MergedLoraExporter
from trainer_integration.sharded.ranks import Ranks

pytestmark = pytest.mark.slow
IDS = torch.arange(16)[None]


def adapted(tied: bool, lora: dict[str, Any], **config: Any) -> Any:
    model = with_adapter(model_of("Qwen3", tie_word_embeddings=tied, **config), **lora).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or ".modules_to_save." in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def staged(model: Any, folder: Path) -> Any:
    MergedLoraExporter(model, files_of(model.get_base_model()), dtype="float32", ranks=Ranks.alone())(folder)
    return transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    "lora",
    [
        {"target_modules": ["embed_tokens"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ],
    ids=str,
)
def test_what_is_merged_computes_what_the_live_model_does(lora: dict[str, Any], tmp_path: Path) -> None:
    model = adapted(False, lora)
    with torch.no_grad():
        wanted, plain = model(IDS).logits, model_of("Qwen3", tie_word_embeddings=False).eval()(IDS).logits
        found = staged(model, tmp_path / "model")(IDS).logits
    assert torch.allclose(found, wanted, atol=1e-4)
    assert not torch.allclose(plain, wanted, atol=1e-1)


TIED = "is tied .*untie the model before adapters are added, or use AdapterExporter"


@pytest.mark.parametrize(
    ("tied", "lora", "config", "said"),
    [
        (True, {"target_modules": ["lm_head"]}, {}, f"the lm_head .*{TIED}"),
        (True, {"target_modules": ["embed_tokens"]}, {}, f"the embedding .*{TIED}"),
        (True, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, {}, "the lm_head .* among modules_to_save"),
        (False, {"target_modules": ["q_proj"], "lora_bias": True}, {"attention_bias": True}, "q_proj has lora_bias"),
        (False, {"target_modules": ["q_proj"], "use_dora": True}, {}, "q_proj has an adapter that is no plain LoRA delta"),
        (False, {"target_modules": [], "target_parameters": ["q_proj.weight"]}, {}, "no plain LoRA delta"),
    ],
    ids=str,
)
def test_what_no_merged_weight_can_say_is_refused(
    tied: bool, lora: dict[str, Any], config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    model = adapted(tied, lora, **config)
    with pytest.raises(PinpointError, match=said):
        staged(model, tmp_path / "model")


def test_an_adapters_parameter_that_nothing_has_merged_is_refused_by_name(tmp_path: Path) -> None:
    model = adapted(False, {"target_modules": ["q_proj"]})
    layer = model.get_base_model().model.layers[1].self_attn.q_proj
    layer.lora_gate = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(PinpointError, match=r"layers\.1\.self_attn\.q_proj\.lora_gate is no part of a plain LoRA delta"):
        staged(model, tmp_path / "model")


def test_of_a_module_saved_whole_the_one_that_trains_is_staged(tmp_path: Path) -> None:
    """TRL keeps the adapter that training began with as `ref`."""
    model = adapted(False, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]})
    model.add_adapter("ref", model.peft_config["default"])
    model.set_adapter("default")
    with torch.no_grad():
        model.get_base_model().lm_head.modules_to_save["default"].weight.fill_(7.0)
        wanted = model(IDS).logits
        found = staged(model, tmp_path / "model")(IDS).logits
    assert torch.allclose(found, wanted, atol=1e-3)


def test_the_hub_is_not_asked_while_training_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def looked_for(model: str, file: str, **_: object) -> bool:
        asked.append(model)
        return False

    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", looked_for)
    model = adapted(False, {"target_modules": ["q_proj"]})
    model.peft_config["default"].base_model_name_or_path = "some/base"
    exporter = AdapterExporter(model, ranks=Ranks.alone())
    before = len(asked)
    exporter(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    assert len(asked) == before > 0

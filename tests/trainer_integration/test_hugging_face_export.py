"""What a Trainer's points are read from is there when they are due, or training does not begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Trainer

from infra.errors import ConfigError
from infra.validation.examination import validate_checkpoint
from infra.validation.readers import LocalFolder
from tests.fakes.prefect_server import FakePrefect
from tests.trainer_integration.conftest import SUITE
from tests.trainer_integration.conftest import Trainer as Home
from tests.trainer_integration.test_hugging_face import Rows, add, asked, hugging_face_trainer
from trainer_integration.adapters.hugging_face_export import usable
from trainer_integration.options import DispatchSettings
from trainer_integration.tiny_trainer.model import build_tokenizer

pytestmark = pytest.mark.slow
LORA = {"r": 2, "target_modules": ["q_proj", "o_proj"], "lora_alpha": 64, "init_lora_weights": False}


def adapted(folder: Path, config: Any, **options: Any) -> Trainer:
    plain = hugging_face_trainer(folder, **options)
    model = peft.get_peft_model(plain.model, config)
    return Trainer(model, plain.args, train_dataset=Rows(), processing_class=build_tokenizer())


def test_a_model_with_lora_adapters_is_evaluated_merged(tmp_path: Path, trainer: Home, prefect: FakePrefect) -> None:
    hf = adapted(tmp_path / "out", peft.LoraConfig(**LORA))
    dispatcher = add(hf, trainer)
    hf.train()
    found = asked(prefect, 4)
    assert dispatcher.records == []  # none was skipped
    assert sorted(found) == [0, 2, 4, 5]
    folders = {step: Path(request["source"]["path"]) for step, request in found.items()}
    for folder in folders.values():
        assert validate_checkpoint(LocalFolder(folder))
    last = AutoModelForCausalLM.from_pretrained(folders[5]).eval()
    ids = torch.arange(4, 16)[None]
    with torch.no_grad():
        torch.testing.assert_close(last(ids).logits, hf.model.eval()(ids).logits, atol=1e-4, rtol=1e-4)
    query = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(*(load_file(folders[step] / "model.safetensors")[query] for step in (0, 5)))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (peft.LoraConfig(**LORA, use_dora=True), "no plain LoRA delta"),
        (peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "PROMPT_TUNING, which no plain model computes"),
    ],
)
def test_adapters_that_can_not_be_merged_are_refused_before_training(
    tmp_path: Path, trainer: Home, config: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        add(adapted(tmp_path / "out", config), trainer)


def test_a_model_that_can_not_be_exported_is_refused_before_training(tmp_path: Path, trainer: Home) -> None:
    hf = hugging_face_trainer(tmp_path / "out")
    hf.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"extra\.bias.*docs/export.md"):
        add(hf, trainer)


def test_where_saved_checkpoints_are_read_such_a_model_is_evaluated_at_those(
    tmp_path: Path, trainer: Home, prefect: FakePrefect
) -> None:
    out = tmp_path / "out"
    hf = adapted(out, peft.LoraConfig(**LORA, use_dora=True), max_steps=4, save_strategy="steps", save_steps=2)
    add(hf, trainer, baseline=False, save_hf=f"{out}/checkpoint-{{step}}", save_interval=2)
    hf.train()
    assert {step: request["source"]["path"] for step, request in asked(prefect, 2).items()} == {
        step: f"{out}/checkpoint-{step}" for step in (2, 4)
    }


@pytest.mark.parametrize(
    ("saves", "said"),
    [
        ({"save_strategy": "no"}, "save_strategy = 'no'"),
        ({"save_strategy": "epoch"}, "save_strategy = 'epoch'"),
        ({"save_strategy": "best", "metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 4}, "= 'best'"),
        ({"save_steps": 3}, "save_steps = 3"),
        ({"save_steps": 8}, "save_steps = 8"),
        ({"save_steps": 0}, "save_steps = 0"),
        ({"save_steps": 0.05}, "save_steps = 0.05"),
        ({"save_steps": 0.05, "max_steps": -1}, "a share of steps it has not counted"),
    ],
)
def test_checkpoints_that_the_trainer_does_not_save_are_refused_before_training(
    tmp_path: Path, trainer: Home, saves: dict[str, Any], said: str
) -> None:
    out = tmp_path / "out"
    hf = hugging_face_trainer(out, **{"save_strategy": "steps", "max_steps": 100, **saves})
    with pytest.raises(ConfigError, match="save_interval = 4.*" + said + ".*set save_strategy='steps' and save_steps=4"):
        add(hf, trainer, every=4, save_hf=f"{out}/checkpoint-{{step}}", save_interval=4)


@pytest.mark.parametrize("steps", [1, 2, 4, 0.02, 0.04])
def test_checkpoints_that_it_saves_at_least_as_often_are_accepted(tmp_path: Path, trainer: Home, steps: float) -> None:
    out = tmp_path / "out"
    hf = hugging_face_trainer(out, save_strategy="steps", max_steps=100, save_steps=steps)
    assert add(hf, trainer, every=4, save_hf=f"{out}/checkpoint-{{step}}", save_interval=4).export is not None


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (SimpleNamespace(model_init=lambda: None), "makes another model by model_init when training begins"),
        (
            SimpleNamespace(accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=1)))),
            "FSDP version 1 .* set version 2 in fsdp_config",
        ),
    ],
    ids=["model_init", "FSDP 1"],
)
def test_a_trainer_whose_model_is_another_when_it_trains_is_refused_before(trainer: Any, said: str) -> None:
    dispatch = DispatchSettings(run="run", suite=SUITE, every=10)
    with pytest.raises(ConfigError, match=said):
        usable(dispatch, None, trainer)

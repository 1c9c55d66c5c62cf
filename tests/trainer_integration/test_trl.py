"""TRL's `GRPOTrainer` is evaluated while it trains by the same one line as any Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from trl import GRPOConfig, GRPOTrainer

from infra import records
from infra.validation.examination import validate_checkpoint
from infra.validation.readers import LocalFolder
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import report_at
from tests.services.waiting import until
from tests.trainer_integration.conftest import SUITE, Trainer
from trainer_integration.adapters.hugging_face import add_evaluation
from trainer_integration.dispatcher import DispatchSettings
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

pytestmark = pytest.mark.slow


def digits(completions: list[str], **_: Any) -> list[float]:
    return [sum(letter.isdigit() for letter in text) / 4 for text in completions]


def grpo_trainer(folder: Path) -> GRPOTrainer:
    args = GRPOConfig(
        str(folder),
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        max_steps=3,
        logging_steps=3,
        learning_rate=0.01,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4,
    )
    tokenizer = build_tokenizer()
    tokenizer.padding_side = "left"
    prompts = Dataset.from_list([{"prompt": f"{number}+{number}="} for number in range(10, 30)])
    model = build_model(0, hidden=32, layers=1)
    return GRPOTrainer(model, digits, args=args, train_dataset=prompts, processing_class=tokenizer)


def test_grpo_is_evaluated_while_it_trains_and_its_own_log_is_undisturbed(
    tmp_path: Path, trainer: Trainer, prefect: FakePrefect
) -> None:
    grpo = grpo_trainer(tmp_path / "out")
    before = grpo.model.model.norm.weight.detach().clone()
    for step in (0, 2):
        records.commit(trainer.store, report_at(step))
    dispatch = DispatchSettings(run="run", suite=SUITE, every=2, max_in_flight=8)
    made = add_evaluation(grpo, dispatch, trainer.settings, drain_s=1.0)
    trainer.stack.callback(made.close)
    grpo.train()
    until(lambda: len(prefect.runs) == 3)
    requests = [run.body["parameters"]["request"] for run in prefect.runs]
    assert [(each["point"]["step"], each["point"]["final"]) for each in requests] == [(0, False), (2, False), (3, True)]
    folders = [Path(each["source"]["path"]) for each in requests]
    staged = [load_file(folder / "model.safetensors")["model.norm.weight"] for folder in folders]
    assert torch.equal(staged[0], before)
    assert torch.equal(staged[2], grpo.model.model.norm.weight)
    assert not torch.equal(staged[1], staged[2])
    for folder in folders:
        assert validate_checkpoint(LocalFolder(folder))
    history = grpo.state.log_history
    assert [entry["eval_step"] for entry in history if "eval_sums" in entry] == [0, 2]
    (own,) = [entry for entry in history if "loss" in entry]
    assert (own["step"], "reward" in own) == (3, True)
    assert not any("reward" in entry for entry in history if "eval_step" in entry)

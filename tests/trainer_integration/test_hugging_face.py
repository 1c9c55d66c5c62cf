"""A real `transformers.Trainer` is evaluated while it trains, whatever happens, and its training is not disturbed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from infra import records
from infra.errors import ConfigError, StoreError
from infra.validation.examination import validate_checkpoint
from infra.validation.readers import LocalFolder
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import report_at
from tests.services.ports import free_port
from tests.services.waiting import until
from tests.trainer_integration.conftest import SUITE
from tests.trainer_integration.conftest import Trainer as Home
from trainer_integration.adapters.hugging_face import TrainingEvents, add_evaluation
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

pytestmark = pytest.mark.slow
STEPS = 5
ROOT = Path(__file__).parents[2]


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.randint(4, 32, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids.clone()}


class AtStep(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int, act: Callable[[], Any]) -> None:
        self.step, self.act = step, act

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            self.act()


def hugging_face_trainer(folder: Path, callbacks: list[Any] | None = None, **options: Any) -> Trainer:
    given: dict[str, Any] = {
        "max_steps": STEPS,
        "save_strategy": "no",
        "per_device_train_batch_size": 2,
        "logging_steps": 2,
        **options,
    }
    args = TrainingArguments(str(folder), use_cpu=True, report_to="none", learning_rate=0.05, disable_tqdm=True, **given)
    model, tokenizer = build_model(0, hidden=32, layers=1), build_tokenizer()
    rows = Rows()
    return Trainer(model, args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer, callbacks=callbacks or [])


def add(trainer: Trainer, home: Home, drain_s: float = 0.0, baseline: bool = True, **changes: Any) -> EvalDispatcher:
    dispatch = DispatchSettings(**{"run": "run", "suite": SUITE, "every": 2, "max_in_flight": 8, **changes})
    made = add_evaluation(trainer, dispatch, home.settings, baseline=baseline, drain_s=drain_s)
    home.stack.callback(made.close)
    return made


def asked(prefect: FakePrefect, count: int) -> dict[int, dict[str, Any]]:
    """Requests by step, when there are `count`."""
    until(lambda: len(prefect.runs) >= count)
    requests = [run.body["parameters"]["request"] for run in prefect.runs]
    assert len(requests) == count
    return {request["point"]["step"]: request for request in requests}


def weights(folder: str | Path) -> Any:
    return load_file(Path(folder) / "model.safetensors")["model.norm.weight"]


def test_baseline_due_steps_and_the_last_are_evaluated_each_with_the_weights_of_its_step(
    tmp_path: Path, trainer: Home, prefect: FakePrefect
) -> None:
    hf = hugging_face_trainer(tmp_path / "out")
    live: dict[int, Any] = {0: hf.model.model.norm.weight.detach().clone()}

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            live[state.global_step] = model.model.norm.weight.detach().clone()

    hf.add_callback(Watch())
    add(hf, trainer)
    hf.train()
    found = asked(prefect, 4)
    assert sorted(found) == [0, 2, 4, 5]
    assert [found[step]["point"]["final"] for step in (0, 2, 4, 5)] == [False, False, False, True]
    for step, request in found.items():
        assert torch.equal(weights(request["source"]["path"]), live[step])
        assert validate_checkpoint(LocalFolder(Path(request["source"]["path"])))
    assert not torch.equal(live[2], live[4])


def test_without_a_baseline_the_first_point_is_the_first_due_step(tmp_path: Path, trainer: Home, prefect: FakePrefect) -> None:
    hf = hugging_face_trainer(tmp_path / "out", max_steps=2)
    add(hf, trainer, baseline=False)
    hf.train()
    assert sorted(asked(prefect, 1)) == [2]


def test_late_metrics_are_logged_through_the_trainer_at_their_own_step(
    tmp_path: Path, trainer: Home, prefect: FakePrefect
) -> None:
    hf = hugging_face_trainer(tmp_path / "out")
    made = add(hf, trainer, drain_s=10)

    def measured(*steps: int) -> Callable[[], None]:
        def commit() -> None:
            for step in steps:
                records.commit(trainer.store, report_at(step))
            until(lambda: {record.point.step for record in made.records} >= set(steps) - {STEPS})

        return commit

    seen: list[dict[str, Any]] = []

    class Tracker(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            seen.append(dict(logs))

    for callback in (AtStep(3, measured(0, 2)), AtStep(4, measured(4, 5)), Tracker()):
        hf.add_callback(callback)
    hf.train()
    entries = [entry for entry in hf.state.log_history if "eval_sums" in entry]
    assert {entry["eval_step"]: entry["step"] for entry in entries} == {0: 4, 2: 4, 4: 5, 5: 5}
    assert entries[0]["eval_sums/weight_version/mean"] == 10.0
    assert len([logs for logs in seen if "eval_sums" in logs]) == 4
    assert len([logs for logs in seen if "eval_export_time_seconds" in logs and "eval_sums" not in logs]) == 4
    assert len([logs for logs in seen if "loss" in logs]) == 2  # its own are undisturbed


def test_checkpoints_that_the_trainer_saves_anyway_are_evaluated_when_they_are_there(
    tmp_path: Path, trainer: Home, prefect: FakePrefect
) -> None:
    out = tmp_path / "out"
    hf = hugging_face_trainer(out, save_strategy="steps", save_steps=2)
    add(hf, trainer, save_hf=f"{out}/checkpoint-{{step}}", save_interval=2)
    hf.train()
    found = asked(prefect, 4)
    for step in (2, 4):
        source = found[step]["source"]
        assert (source["path"], source["staged"]) == (f"{out}/checkpoint-{step}", False)
        assert validate_checkpoint(LocalFolder(Path(source["path"])))
    for step in (0, 5):  # neither is a multiple of what is saved
        assert found[step]["source"]["staged"]


def test_a_training_that_stops_early_has_its_final_point(tmp_path: Path, trainer: Home, prefect: FakePrefect) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    hf = hugging_face_trainer(tmp_path / "out", [EarlyStoppingCallback(2)], **options, **best, max_steps=40)
    add(hf, trainer, every=30)
    hf.train()
    last = hf.state.global_step
    assert last < 30
    found = asked(prefect, 2)
    assert found[last]["point"]["final"]
    saved = weights(f"{tmp_path}/out/checkpoint-{last}")
    assert torch.equal(weights(found[last]["source"]["path"]), saved)
    assert not torch.equal(hf.model.model.norm.weight, saved)  # its best model is another one


def test_training_that_is_resumed_goes_on_from_its_step_and_is_another_attempt(
    tmp_path: Path, trainer: Home, prefect: FakePrefect
) -> None:
    out = tmp_path / "out"
    first = hugging_face_trainer(out, max_steps=3, save_strategy="steps", save_steps=3)
    add(first, trainer)
    first.train()
    asked(prefect, 3)
    again = hugging_face_trainer(out, max_steps=6)
    add(again, trainer, baseline_checkpoint="/what/training/started/from")
    again.train(resume_from_checkpoint=f"{out}/checkpoint-3")
    until(lambda: len(prefect.runs) == 6)
    points = [run.body["parameters"]["request"]["point"] for run in prefect.runs[3:]]
    assert [(point["step"], point["attempt"]) for point in points] == [(3, 1), (4, 1), (6, 1)]
    source = prefect.runs[3].body["parameters"]["request"]["source"]
    assert torch.equal(weights(source["path"]), weights(out / "checkpoint-3"))


def test_whatever_goes_wrong_training_comes_to_its_end(
    tmp_path: Path, trainer: Home, prefect: FakePrefect, caplog: pytest.LogCaptureFixture
) -> None:
    hf = hugging_face_trainer(tmp_path / "out")
    made = add(hf, trainer)

    def spoil() -> None:
        made.desk.submitter.outbox.folder.rename(tmp_path / "gone")
        made.new_metrics = None  # type: ignore[method-assign,assignment]

    hf.add_callback(AtStep(2, spoil))
    with caplog.at_level(logging.ERROR):
        hf.train()
    assert hf.state.global_step == STEPS
    assert "pinpoint: evaluation of the metrics went wrong" in caplog.messages


def test_what_can_not_work_is_refused_before_training(tmp_path: Path, trainer: Home) -> None:
    hf = hugging_face_trainer(tmp_path / "out")
    hf.processing_class = None
    with pytest.raises(ConfigError, match="processing_class"):
        add(hf, trainer)
    (tmp_path / "file").write_text("")
    trainer.settings = trainer.settings.model_copy(update={"store_url": (tmp_path / "file" / "store").as_uri()})
    with pytest.raises(StoreError):
        add(hugging_face_trainer(tmp_path / "out"), trainer)


def test_ranks_that_torchrun_started_export_together_and_one_of_them_dispatches(tmp_path: Path, prefect: FakePrefect) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()))
    job = (*torchrun, "-m", "tests.services.ddp_trainer", str(tmp_path), prefect.api_url)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(job, cwd=ROOT, env=environment, timeout=300, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = asked(prefect, 4)
    assert sorted(found) == [0, 2, 4, 5]
    assert torch.equal(weights(found[5]["source"]["path"]), weights(tmp_path / "last"))
    for request in found.values():
        (part,) = request["source"]["parts"]
        assert len(part["shards"]) >= 1
        assert validate_checkpoint(LocalFolder(Path(part["path"])))


def test_a_second_training_that_ends_at_the_same_step_has_a_last_point_too(trainer: Home) -> None:
    events = TrainingEvents(trainer.start(), None, baseline=False, drain_s=0.0)
    args, state = SimpleNamespace(load_best_model_at_end=False), SimpleNamespace(best_model_checkpoint=None)
    for _ in range(2):
        state.global_step = 0
        events.on_train_begin(args, state, None)
        state.global_step = 5
        events.on_train_end(args, state, None)
    assert len(trainer.export.folders) == 2

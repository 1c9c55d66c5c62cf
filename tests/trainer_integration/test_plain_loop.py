"""The ten lines of the README are all that a training loop of one's own needs, as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from infra import records
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import jsonl, report_at
from tests.services.waiting import until
from tests.trainer_integration.conftest import Trainer
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

README = Path(__file__).parents[2] / "README.md"
STEPS = 60


def code_of_the_readme() -> str:
    (code,) = re.findall(r"## In your trainer\n+```python\n(.*?)```", README.read_text(), re.DOTALL)
    return str(code)


@pytest.mark.slow
def test_the_lines_of_the_readme_run_as_they_stand(
    trainer: Trainer, prefect: FakePrefect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "sums.jsonl", '{"prompt": "1+1=", "answer": "2"}')
    (tmp_path / "suite.yaml").write_text("datasets: [{name: sums, source: sums.jsonl}]")
    monkeypatch.setenv("PINPOINT_HOME", str(trainer.settings.home))
    monkeypatch.setenv("PINPOINT_STAGING_DIR", str(trainer.settings.staging_dir))
    monkeypatch.setenv("PINPOINT_PREFECT_API_URL", str(trainer.settings.prefect_api_url))
    model, taken = build_model(0, hidden=32, layers=1), list[int]()

    def train_one_step() -> None:
        taken.append(len(taken) + 1)
        with torch.no_grad():
            model.model.norm.weight.fill_(len(taken))

    for step in (0, 50, STEPS):
        records.commit(trainer.store, report_at(step, run="my-run"))
    names: dict[str, Any] = {"model": model, "tokenizer": build_tokenizer(), "steps": STEPS, "train_one_step": train_one_step}
    exec(compile(code_of_the_readme(), str(README), "exec"), names)
    assert len(taken) == STEPS
    assert sorted(record.point.step for record in names["evaluation"].records) == [0, 50, STEPS]
    until(lambda: len(prefect.runs) == 3)
    sources = [run.body["parameters"]["request"]["source"]["path"] for run in prefect.runs]
    norms = [load_file(Path(source) / "model.safetensors")["model.norm.weight"][0].item() for source in sources]
    assert norms == [1.0, 50.0, float(STEPS)]


def test_they_are_ten() -> None:
    lines = [line for line in code_of_the_readme().splitlines() if line.strip() and not line.startswith("from ")]
    assert len(lines) <= 10

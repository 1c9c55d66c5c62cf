"""The tiny trainer as a process: a point without a record is told as missing, and SIGTERM leaves nothing in shared memory."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra import records
from infra.processes import stop
from tests.infra.examples import report_at
from tests.trainer_integration.conftest import Trainer as Trainers
from trainer_integration.tiny_trainer.__main__ import Trainer
from trainer_integration.tiny_trainer.config import StepInfo


def step(number: int) -> StepInfo:
    return StepInfo(step=number, final=False, model=None, tokenizer=None)


@pytest.mark.parametrize("measured", [(), (10,), (10, 20)])
def test_points_that_have_no_record_after_the_last_wait_are_told_as_missing(
    trainer: Trainers, tmp_path: Path, capsys: pytest.CaptureFixture[str], measured: tuple[int, ...]
) -> None:
    given = {"run": "run", "folder": tmp_path, "steps": 20, "every": 10, "seed": 0, "problems": 4, "small": True}
    tiny = Trainer(argparse.Namespace(**given, overflow_policy="skip", drain_s=0.6, keep_checkpoints=None))
    tiny.dispatcher = trainer.start()
    for number in (10, 20):
        tiny.on_step(step(number))
    for number in measured:
        records.commit(trainer.store, report_at(number))
    tiny.finish()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["step"] for event in told if event["event"] == "record"] == list(measured)
    missing = [number for number in (10, 20) if number not in measured]
    assert [event["steps"] for event in told if event["event"] == "missing"] == ([missing] if missing else [])


def semaphores_of(pid: int) -> set[str]:
    """Named semaphores that the process has mapped."""
    return set(re.findall(r"/dev/shm/sem\.\S+", Path(f"/proc/{pid}/maps").read_text()))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_trainer_that_is_stopped_unlinks_its_semaphores(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer_integration.tiny_trainer", "--run", "run", "--folder", str(tmp_path / "suite")]
    environment: dict[str, Any] = {"PINPOINT_HOME": str(tmp_path), "PINPOINT_STAGING_DIR": str(tmp_path / "staging")}
    process = subprocess.Popen(
        [*command, "--small", "--problems", "4"],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "progress"
        mapped = semaphores_of(process.pid)
        assert len(mapped) >= 7
    finally:
        stop(process)
    assert process.returncode == 143
    assert [name for name in mapped if Path(name).exists()] == []

"""Megatron-Core's ranks train and are evaluated on the way; a rank that fails to export costs one point and no step."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from infra.validation.examination import validate_checkpoint
from infra.validation.readers import LocalFolder
from tests.fakes.prefect_server import FakePrefect
from tests.megatron.cases import loaded_logits
from tests.megatron.training import FAILS_AT, STEPS
from tests.services.ports import free_port

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, 4], ids="{} ranks".format)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[int, Any]]:
    """What each rank said, and the flow runs by step; torchrun starts them, tensor parallel by two, the rest data parallel."""
    home = tmp_path_factory.mktemp("job")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(request.param))
    with FakePrefect() as prefect:
        job = ("--master-port", str(free_port()), "-m", "tests.services.megatron_trainer", str(home), prefect.api_url, "2")
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            (*torchrun, *job), cwd=ROOT, env=environment, timeout=400, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        said = [pickle.loads((home / f"said-{rank}.pickle").read_bytes()) for rank in range(request.param)]
        return said, {run.body["parameters"]["request"]["point"]["step"]: run for run in prefect.runs}


def test_rank_0_dispatches_what_is_due_and_the_point_that_one_rank_could_not_export_is_skipped(
    job: tuple[list[Any], dict[int, Any]],
) -> None:
    (first, *others), runs = job
    assert first["done"] == {0: "submitted", 1: None, 2: "submitted", 3: None, FAILS_AT: "export_failed", STEPS: "submitted"}
    assert all(set(other["done"].values()) == {None} for other in others)
    assert {step: run.state["name"] for step, run in runs.items()} == {
        0: "Scheduled",
        2: "Scheduled",
        FAILS_AT: "Skipped",
        STEPS: "Scheduled",
    }
    assert "rank 1: OSError: [Errno 28]" in runs[FAILS_AT].body["state"]["message"]


def test_training_goes_on_and_learns_whatever_happened_to_an_export(job: tuple[list[Any], dict[int, Any]]) -> None:
    said, _ = job
    for rank in said:
        assert len(rank["losses"]) == STEPS
        assert rank["losses"][-1] < rank["losses"][0]


@pytest.mark.parametrize("step", [0, 2, STEPS])
def test_what_was_exported_loads_in_transformers_and_is_the_model_of_its_step(
    job: tuple[list[Any], dict[int, Any]], step: int
) -> None:
    (first, *_), runs = job
    folder = Path(runs[step].body["parameters"]["request"]["source"]["path"])
    assert validate_checkpoint(LocalFolder(folder))
    found, information = loaded_logits(folder)
    assert not information["missing_keys"]
    assert not information["unexpected_keys"]
    for other, live in first["logits"].items():
        assert numpy.allclose(found, live, atol=2e-4) == (other == step)

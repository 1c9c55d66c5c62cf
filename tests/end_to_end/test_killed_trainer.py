"""What a killed trainer left is settled by the sweeper, too, with no trainer and nobody at a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from infra import records
from infra.model import EvalPoint, SkippedPoint
from infra.store import Store
from tests.end_to_end.points import patiently, wait_until
from tests.services.dying_trainer import LAST
from tests.services.stack import RunningStack

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("place", "reason"), [("exporting", "crashed"), ("last step", "ckpt_invalid")])
def test_the_sweep_delivers_or_skips_what_a_killed_trainer_left(services: RunningStack, place: str, reason: str) -> None:
    """The exporter is a fake: its model is dispatched like any other, and found invalid by the flow."""
    run = f"killed-{place.replace(' ', '-')}"
    nowhere = "http://127.0.0.1:9/api"
    command = [sys.executable, "-m", "tests.services.dying_trainer", str(services.home), nowhere, place, run]
    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == -9
    point, store = EvalPoint(run=run, step=LAST), Store((services.home / "store").as_uri())
    assert records.find(store, point, "suite") is None

    api = services.stack.prefect_api_url
    deployment = httpx.get(f"{api}/deployments/name/reclaim_orphans/pinpoint", timeout=30).json()["id"]
    patiently(lambda: str(services.post(f"/deployments/{deployment}/create_flow_run", {})["id"]))
    wait_until(lambda: records.find(store, point, "suite") is not None)
    record = records.find(store, point, "suite")
    assert isinstance(record, SkippedPoint)
    assert record.reason == reason, record.message
    (flow_run,) = services.flow_runs(run)
    wait_until(lambda: services.flow_runs(run)[0]["state_name"] == "Skipped")
    assert flow_run["name"] == f"{run} · step 000010"
    wait_until(lambda: not list((services.home / "staging").glob(f"staged/{run}/*")))

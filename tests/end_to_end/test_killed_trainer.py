"""What a killed trainer left is settled by the sweeper, too, with no trainer and nobody at a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra import records
from infra.model import EvalPoint, SkippedPoint
from infra.store import Store
from tests.end_to_end.points import wait_until
from tests.services.dying_trainer import LAST
from tests.services.stack import RunningStack
from tests.services.waiting import patiently

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

    deployment = services.deployment_id("reclaim_orphans/pinpoint")
    patiently(lambda: str(services.post(f"/deployments/{deployment}/create_flow_run", {})["id"]))
    wait_until(lambda: records.find(store, point, "suite") is not None)
    record = records.find(store, point, "suite")
    assert isinstance(record, SkippedPoint)
    assert record.reason == reason, record.message
    shown = [(f"{run} · step 000010", "Skipped")]  # when Prefect has taken it, which the record does not wait for
    wait_until(lambda: [(one["name"], one["state_name"]) for one in services.flow_runs(run)] == shown)
    wait_until(lambda: not list((services.home / "staging").glob(f"staged/{run}/*")))

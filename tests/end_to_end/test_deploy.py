"""`prefect deploy --all` registers this project's deployments with any Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.services.stack import RunningStack

ROOT = Path(__file__).parents[2]
PREFECT = str(Path(sys.executable).parent / "prefect")


def prefect(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [PREFECT, "--no-prompt", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_deploy_all_registers_every_deployment(services: RunningStack) -> None:
    api = services.stack.prefect_api_url
    environment = {"PREFECT_API_URL": api, "PREFECT_HOME": str(services.home / "prefect-client")}
    before = services.asked("GET", "/deployments/name/evaluate_snapshot/pinpoint").json()
    prefect("work-pool", "create", "pinpoint", "--type", "process", **environment)
    prefect("deploy", "--all", **environment)
    after = services.asked("GET", "/deployments/name/evaluate_snapshot/pinpoint").json()
    assert after["work_pool_name"] == "pinpoint"
    assert after["entrypoint"] == "flows.evaluate_snapshot.evaluate_snapshot"
    assert after["parameter_openapi_schema"] == before["parameter_openapi_schema"]
    live = services.asked("GET", "/deployments/name/evaluate_live/pinpoint").json()
    assert live["entrypoint"] == "flows.evaluate_live.evaluate_live"
    sweeping = services.asked("GET", "/deployments/name/reclaim_orphans/pinpoint").json()
    assert [schedule["schedule"]["interval"] for schedule in sweeping["schedules"] if schedule["active"]] == [3600.0]
    saved = services.asked("GET", "/deployments/name/reevaluate_saved/pinpoint").json()
    assert {schedule["slug"]: schedule["active"] for schedule in saved["schedules"]} == {
        "nightly": False,
        "every-quarter-of-an-hour": False,
    }
    described = saved["parameter_openapi_schema"]["properties"]
    assert all(described[name]["description"] for name in ("roots", "suite", "pattern", "order", "limit", "where", "care"))

"""What people have set of the re-evaluation's deployment is kept when a runner starts again and registers it anew."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tests.services.stack import RunningStack

REGISTER = "import asyncio; from flows.serve import reevaluation; asyncio.run(reevaluation()).apply()"
NAME = "reevaluate_saved/pinpoint"


def test_a_resumed_schedule_and_parameters_survive_the_next_start_of_the_runner(services: RunningStack) -> None:
    api = services.stack.prefect_api_url

    def deployment() -> dict[str, Any]:
        return dict(services.asked("GET", f"/deployments/name/{NAME}").json())

    def active() -> dict[str, bool]:
        return {schedule["slug"]: schedule["active"] for schedule in deployment()["schedules"]}

    first = deployment()
    assert active() == {"nightly": False, "every-quarter-of-an-hour": False}
    try:
        parameters = {"roots": ["/runs/mine"], "suite": "nightly.yaml"}
        services.asked("PATCH", f"/deployments/{first['id']}", {"parameters": parameters})
        nightly = next(schedule for schedule in first["schedules"] if schedule["slug"] == "nightly")
        services.asked("PATCH", f"/deployments/{first['id']}/schedules/{nightly['id']}", {"active": True})
        assert active() == {"nightly": True, "every-quarter-of-an-hour": False}
        subprocess.run([sys.executable, "-c", REGISTER], check=True, timeout=120, env={**os.environ, "PREFECT_API_URL": api})
        assert active() == {"nightly": True, "every-quarter-of-an-hour": False}
        assert deployment()["parameters"] == parameters
    finally:
        for schedule in deployment()["schedules"]:
            services.asked("PATCH", f"/deployments/{first['id']}/schedules/{schedule['id']}", {"active": False})

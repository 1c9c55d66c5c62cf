"""A point goes to the sinks of the settings as soon as it has its record, whichever record that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from infra.model import BlackBoxSpec, EvalRequest, FleetSpec
from tests.end_to_end.points import Points, wait_until
from tests.infra.sink_readers import lines_of_jsonl
from tests.services.stack import RunningStack

ROOT = Path(__file__).parents[2]
FLOW = """
import asyncio, sys

from flows.evaluate_snapshot import evaluate_snapshot
from infra.model import EvalRequest

asyncio.run(evaluate_snapshot(EvalRequest.model_validate_json(sys.stdin.read())))
"""


def measure(request: EvalRequest) -> None:
    """In a process of its own, as the runner does, with sinks in its settings."""
    environment = {**os.environ, "PINPOINT_SINKS": "jsonl", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FLOW]
    subprocess.run(command, input=request.model_dump_json().encode(), env=environment, check=True, timeout=240)


def test_a_report_and_a_skip_go_to_the_sink_of_the_settings(services: RunningStack, points: Points, tmp_path: Path) -> None:
    function = BlackBoxSpec(function="tests.fakes.black_boxes.Well", settings={"notes": str(tmp_path)})
    well, spoiled = (points.request(n).model_copy(update={"black_box": function, "fleet": FleetSpec()}) for n in (1, 2))
    (Path(spoiled.source.path) / "model.safetensors").write_bytes(b"cut off")
    file = services.home / "sinks" / "jsonl" / f"{points.run}.jsonl"

    measure(spoiled)
    wait_until(file.is_file, 60)
    measure(well)
    wait_until(lambda: len(lines_of_jsonl(services.home, points.run)) == 2, 60)

    first, second = lines_of_jsonl(services.home, points.run)
    assert (first["step"], first["kind"], first["metrics"]["eval/step"]) == (1, "report", 1.0)
    assert first["metrics"]["eval/size"] > 0
    assert (second["step"], second["kind"], second["reason"]) == (2, "skip", "ckpt_invalid")

"""What a due `on_step` costs a training loop of one rank besides the export itself, in each state that Prefect may be in.

The home is on disk and the staging area in memory, where there is one, as they are by default.

python -m benchmarks.on_step
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from infra.config import Settings
from infra.model import DatasetSpec, Suite
from tests.fakes.prefect_server import FakePrefect
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher

DUE_STEPS = 60


def on_step_ms(home: Path) -> dict[str, float]:
    """Medians over due steps, without the export itself, for each state of Prefect."""
    faults: dict[str, dict[str, Any]] = {"up": {}, "hung": {"hung": True}, "failing": {"failing": 503}, "down": {}}
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as staging:
        return {name: round(_on_step_ms(home / name, Path(staging), name, fields), 3) for name, fields in faults.items()}


def _on_step_ms(home: Path, staging: Path, state: str, fields: dict[str, Any]) -> float:
    suite = Suite(name="sums", datasets=(DatasetSpec(name="sums", source=str(home / "sums.jsonl")),))
    with FakePrefect() as prefect:
        for field, value in fields.items():
            setattr(prefect, field, value)
        if state == "down":
            prefect.stop()
        settings = Settings(prefect_api_url=prefect.api_url, home=home, staging_dir=staging)
        dispatch = DispatchSettings(run="benchmark", suite=suite, every=1, max_in_flight=10 * DUE_STEPS)
        dispatcher = EvalDispatcher(dispatch, settings, lambda folder: None)
        taken = []
        for step in range(1, DUE_STEPS + 1):
            started = time.perf_counter()
            dispatched = dispatcher.on_step(step)
            export_s = dispatched.export_time_seconds if dispatched else 0.0
            taken.append(1000 * (time.perf_counter() - started - export_s))
            time.sleep(0.02)
        dispatcher.close()
    return statistics.median(taken)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(on_step_ms(Path(folder)))

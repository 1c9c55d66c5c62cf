"""A driver that evaluates its live model and is killed (SIGKILL) while it waits for submissions under way.

`python -m tests.services.dying_driver HOME PREFECT_API`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from infra.config import Settings
from infra.model import Suite
from tests.infra.examples import dataset
from trainer_integration.live import LiveEvaluator, LiveSettings
from trainer_integration.pause_gate import PauseGate


class DyingGate(PauseGate):
    def unfinished(self, wait_s: float = 0.0) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 1


def main(home: Path, api_url: str) -> None:
    live = LiveSettings(run="run", suite=Suite(name="suite", datasets=(dataset(),)), engines=("http://127.0.0.1:30000",))
    LiveEvaluator(live, Settings(home=home, prefect_api_url=api_url), DyingGate()).evaluate_live(40)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

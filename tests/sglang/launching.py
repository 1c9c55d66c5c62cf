"""Real SGLang servers on this machine's CPU, started by the command line that a fleet would start them by."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.engines.launch import Place, launch
from infra.model import FleetSpec
from infra.processes import fated, stop
from tests.engines.launching import ROOT, RunningEngine, wait_until_ready
from tests.services.ports import free_port
from tests.sglang.environment import interpreter

KEY = "a key that ps must not show"
# The memory for a KV cache is a share of the machine's unless its size is said.
SMALL = {"max_total_tokens": 32768, "max_running_requests": 32}
HEALTH_TIMEOUT_S = "2"


def sglang_fleet(**changes: Any) -> FleetSpec:
    python = interpreter()
    if python is None:
        pytest.skip("SGLang's own environment is not there: `make test-sglang` builds it")
    given = {"engine": "sglang", "engine_python": str(python), "engine_args": SMALL, "boot_timeout_s": 400.0, **changes}
    return FleetSpec(**given)


@contextmanager
def sglang_engine(folder: Path, *arguments: str, **variables: str) -> Iterator[RunningEngine]:
    port = free_port()
    starting = launch(sglang_fleet(), Place(folder=folder, address="127.0.0.1", port=port, api_key=KEY, threads=1))
    environment = {**os.environ, **starting.environment, "SGLANG_HEALTH_CHECK_TIMEOUT": HEALTH_TIMEOUT_S, **variables}
    command = fated([*starting.command, *arguments], signal.SIGKILL)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        engine = RunningEngine(f"http://127.0.0.1:{port}", process, KEY)
        try:
            wait_until_ready(engine)
            yield engine
        finally:
            stop(process)

"""The embedded engine as a process: it starts or says why not in one line, keeps its door, and ends when it should."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import torch
import xxhash
from safetensors.torch import load_file

from tests.engines.conftest import Checkpoints
from tests.engines.launching import (
    ROOT,
    RunningEngine,
    command,
    embedded_engine,
    engine_command,
    environment,
    owned,
    wait_until,
    wait_until_ready,
)
from tests.services.ports import free_port

# Fates its child itself: `fated` names the process that calls it as the parent.
PARENT = """
import signal, subprocess, sys
from infra.processes import fated
child = subprocess.Popen(fated(sys.argv[1:], signal.SIGKILL))
print(child.pid, flush=True)
child.wait()
"""


def failed_start(folder: Path | str, port: int) -> subprocess.CompletedProcess[str]:
    arguments = command(folder, port)
    return subprocess.run(arguments, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)


def test_a_busy_port_ends_the_start_with_code_2_and_one_line(first: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = failed_start(first, port)
    assert failed.returncode == 2
    assert len(failed.stderr.strip().splitlines()) == 1
    assert f"port {port} is in use" in failed.stderr


def test_a_model_path_that_is_not_there_ends_the_start_with_code_2_and_one_line(tmp_path: Path) -> None:
    failed = failed_start(tmp_path / "nowhere", free_port())
    assert failed.returncode == 2
    assert failed.stderr.strip().splitlines() == [f"embedded engine: no checkpoint folder {tmp_path / 'nowhere'}"]


def test_an_engine_with_a_key_is_closed_but_for_health_and_dies_with_its_parent(first: Path) -> None:
    port = free_port()
    launch = [sys.executable, "-c", PARENT, *engine_command(first, port, "--api-key", "secret")]
    with owned(subprocess.Popen(launch, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)) as parent:
        engine = RunningEngine(f"http://127.0.0.1:{port}", api_key="secret")
        wait_until_ready(engine)
        assert {httpx.get(engine.base_url + path).status_code for path in ("/health", "/ready")} == {200}
        closed = ["/model_info", "/server_info", "/v1/loads", "/flush_cache", "/generate", "/nowhere"]
        assert {httpx.get(engine.base_url + path).status_code for path in closed} == {401}
        wrong = {"Authorization": "Bearer other"}
        assert httpx.post(engine.base_url + "/pause_generation", json={}, headers=wrong).status_code == 401
        assert engine.version() == "default"
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().decode().strip()
        assert child.exists()
        parent.kill()
        parent.wait()
        wait_until(lambda: not (child / "exe").exists(), timeout_s=5)


def test_bfloat16_stays_bfloat16_and_sigterm_ends_a_busy_engine_promptly(checkpoints: Checkpoints) -> None:
    folder = checkpoints.make("half", 3, dtype=torch.bfloat16)
    with embedded_engine(folder, "--weight-version", "step-3", "--max-running-requests", "2") as engine:
        assert engine.version() == "step-3"
        tensors = load_file(folder / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
        assert engine.checksums() == {
            name: xxhash.xxh3_128_hexdigest(tensor.view(torch.uint8).numpy().tobytes()) for name, tensor in tensors.items()
        }
        answers = engine.post("/generate", {"text": ["1+1="] * 5, "sampling_params": {"max_new_tokens": 9}}).json()
        assert [answer["meta_info"]["completion_tokens"] > 0 for answer in answers] == [True] * 5
        assert engine.get("/server_info").json()["internal_states"][0]["peak_running_reqs"] == 2
        running = engine.in_background("1+1=", tokens=5000)
        process, started = engine.process, time.monotonic()
        assert process is not None
        process.terminate()
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - started < 5
        assert "the model thread has ended" in str(running.exception(timeout=5))

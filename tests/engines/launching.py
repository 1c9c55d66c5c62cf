"""An engine started here is a real process on a free port, and is ended by its own pid however the test ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from infra.processes import fated
from tests.services.ports import free_port
from tests.services.waiting import until

START_TIMEOUT_S = 180
ROOT = Path(__file__).parents[2]
# One for all: making a client costs more than most of the calls.
CLIENT = httpx.Client(trust_env=False, verify=False, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A client of one engine; `process` is None for an engine that the test did not start."""

    base_url: str
    process: subprocess.Popen[bytes] | None = None
    api_key: str | None = None

    def get(self, path: str) -> httpx.Response:
        return CLIENT.get(self.base_url + path, headers=self._headers())

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return CLIENT.post(self.base_url + path, json=body, headers=self._headers())

    def post_raw(self, path: str, body: bytes) -> httpx.Response:
        return CLIENT.post(self.base_url + path, content=body, headers=self._headers())

    def generate(self, prompt: str | list[int], *, tokens: int = 8, **body: Any) -> dict[str, Any]:
        """A greedy generation of exactly `tokens` tokens unless `sampling_params` says else."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **body.pop("sampling_params", {})}
        field = "text" if isinstance(prompt, str) else "input_ids"
        response = self.post("/generate", {field: prompt, "sampling_params": sampling, **body})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def update(self, folder: Path, version: str | None = None, **body: Any) -> httpx.Response:
        label = {} if version is None else {"weight_version": version}
        return self.post("/update_weights_from_disk", {"model_path": str(folder), **label, **body})

    def version(self) -> str:
        return str(self.get("/model_info").json()["weight_version"])

    def checksums(self) -> dict[str, str]:
        answer: dict[str, str] = self.post("/weights_checker", {"action": "checksum"}).json()["ranks"][0]["checksums"]
        return answer

    def running(self) -> int:
        return int(self.get("/v1/loads?include=core").json()["loads"][0]["num_running_reqs"])

    def in_background(self, prompt: str, **body: Any) -> Future[dict[str, Any]]:
        """`generate` in a thread; returns once the engine says one more request is running."""
        before = self.running()
        pool = ThreadPoolExecutor(1)
        future = pool.submit(self.generate, prompt, **body)
        pool.shutdown(wait=False)
        wait_until(lambda: self.running() > before or future.done())
        return future

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def engine_command(folder: Path | str, port: int, *arguments: str) -> list[str]:
    module = [sys.executable, "-m", "infra.engines.embedded"]
    return [*module, "--model-path", str(folder), "--port", str(port), *arguments]


def command(folder: Path | str, port: int, *arguments: str) -> list[str]:
    return fated(engine_command(folder, port, *arguments), signal.SIGKILL)


def environment() -> dict[str, str]:
    return {**os.environ, "SGLANG_HEALTH_CHECK_TIMEOUT": "1"}


@contextmanager
def embedded_engine(folder: Path, *arguments: str, api_key: str | None = None) -> Iterator[RunningEngine]:
    port = free_port()
    key = ("--api-key", api_key) if api_key else ()
    with owned(subprocess.Popen(command(folder, port, *arguments, *key), cwd=ROOT, env=environment())) as process:
        engine = RunningEngine(f"http://127.0.0.1:{port}", process, api_key)
        wait_until_ready(engine)
        yield engine


@contextmanager
def owned(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(engine: RunningEngine) -> None:
    def answers() -> bool:
        if engine.process is not None and engine.process.poll() is not None:
            raise RuntimeError(f"the engine ended with {engine.process.returncode} while it started")
        try:
            return engine.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers, timeout_s=START_TIMEOUT_S, every_s=0.1)


def wait_until(holds: Callable[[], object], *, timeout_s: float = 60, every_s: float = 0.005) -> None:
    until(holds, timeout_s, every_s)

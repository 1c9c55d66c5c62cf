"""One real Prefect server, Ray and runner for all end-to-end tests, and a real S3 server behind a wire that can break."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.stack import Stack, stack_of
from infra.config import Settings, load_settings
from infra.model import FleetSpec
from tests.fakes.s3_proxy import S3Proxy
from tests.services.ports import free_port
from tests.services.s3 import S3Server, s3_server

FLEET = FleetSpec(name="test", num_engines=2, cpus_per_engine=0.5, idle_timeout_s=300)

PATIENCE = 60


@dataclass(frozen=True)
class RunningStack:
    stack: Stack
    home: Path
    s3: S3Server
    s3_wire: S3Proxy

    def settings(self, store_url: str) -> Settings:
        return load_settings(home=self.home, store_url=store_url, fleet=FLEET)

    def file_url(self, name: str) -> str:
        return (self.home / name).as_uri()

    def s3_url(self, name: str) -> str:
        return f"s3://{self.s3.bucket}/{name}"

    def flow_runs(self, run: str) -> list[dict[str, Any]]:
        """The run's flow runs as the Prefect API gives them, by name."""
        body = {"flow_runs": {"tags": {"all_": [f"run:{run}"]}}, "sort": "START_TIME_ASC"}
        return sorted(self.post("/flow_runs/filter", body), key=lambda flow_run: str(flow_run["name"]))

    def deployment_id(self, name: str) -> str:
        """Of FLOW/DEPLOYMENT."""
        return str(self.asked("GET", f"/deployments/name/{name}").json()["id"])

    def known(self) -> AbstractContextManager[object]:
        """Prefect's own client in this process, which read its settings before there was the server, asks this one."""
        return temporary_settings({PREFECT_API_URL: self.stack.prefect_api_url})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self.asked("POST", path, body).json()

    def asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Of the Prefect API; patient with the 503 that it gives while SQLite is locked, as trainers are."""
        for _ in range(PATIENCE):
            answer = httpx.request(method, f"{self.stack.prefect_api_url}{path}", json=body, timeout=90)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(0.5)
        return answer.raise_for_status()


@contextmanager
def running_stack() -> Iterator[RunningStack]:
    """Started as `pinpoint up` starts it, in a home of its own."""
    before = dict(os.environ)
    home = Path(tempfile.mkdtemp(prefix="pinpoint-test-"))
    os.environ["PINPOINT_STAGING_DIR"] = str(home / "staging")
    os.environ["PINPOINT_HOME"] = str(home)
    try:
        with s3_server(home / "s3") as real, S3Proxy(real.endpoint) as wire:
            s3 = replace(real, endpoint=wire.endpoint)
            os.environ.update(s3.environment)
            with stack_of(load_settings(), port=free_port()) as stack:
                yield RunningStack(stack, home, s3, wire)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(home, ignore_errors=True)

"""`pinpoint doctor` is content with a machine on which evaluations work, and names what is at fault on others."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.stack import Stack, local_stack
from infra.config import load_settings
from infra.store import PROBES, Store
from tests.end_to_end.command import PINPOINT, bare_environment, pinpoint
from tests.end_to_end.test_deploy import prefect
from tests.services.ports import free_port
from tests.services.stack import FLEET, RunningStack

SMALL = FLEET.model_dump_json()


@pytest.fixture(scope="module")
def empty_prefect(services: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A server on which nothing was ever registered."""
    home = tmp_path_factory.mktemp("empty-prefect")
    settings = load_settings(home=home, ray_address=services.stack.ray_address)
    with local_stack(settings.model_copy(update={"prefect_api_url": None}), port=free_port(), runner=False) as stack:
        yield stack


class Page(BaseHTTPRequestHandler):
    """Answers everything, as a proxy's error page may."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *_: object) -> None:
        pass


def asked(*arguments: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    environment = {"PINPOINT_FLEET": SMALL, **environment}
    done = pinpoint("doctor", "--json", *arguments, timeout_s=120, **environment)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def faults(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {one["piece"]: f"{one['found']} -> {one['remedy']}" for one in findings if one["verdict"] == "fault"}


def test_where_evaluations_work_nothing_is_at_fault(services: RunningStack) -> None:
    url = services.s3_url("doctor")
    code, findings = asked("--store", url)
    assert (code, faults(findings)) == (0, {})
    pieces = {one["piece"].split(" on ")[0] for one in findings}
    assert pieces >= {"store: conditional create", "staging", "Prefect", "deployments", "runner", "Ray", "capacity", "engine"}
    assert Store(url).list(PROBES) == {}


def test_people_read_a_line_a_piece(services: RunningStack) -> None:
    done = pinpoint("doctor", "--store", services.file_url("doctor"), PINPOINT_FLEET=SMALL)
    assert done.returncode == 0, done.stdout
    assert "ok    store: conditional create: 1 of 8 creators succeeded" in done.stdout.splitlines()
    assert "ok    runner: asks for work" in done.stdout.splitlines()


def test_a_store_that_ignores_conditions_is_found_out(services: RunningStack) -> None:
    services.s3_wire.faults.unconditional = True
    try:
        code, findings = asked("--store", services.s3_url("doctor"))
    finally:
        services.s3_wire.mend()
    assert code == 1
    assert list(faults(findings)) == ["store: conditional create"]
    assert "8 of 8 simultaneous creators" in faults(findings)["store: conditional create"]
    assert "If-None-Match" in faults(findings)["store: conditional create"]


def test_a_store_that_refuses_us_and_a_staging_area_that_can_not_be_written_are_named(services: RunningStack) -> None:
    url = services.s3_url("doctor")
    code, findings = asked("--store", url, AWS_SECRET_ACCESS_KEY="wrong", PINPOINT_STAGING_DIR="/proc/nowhere")
    assert code == 1
    assert set(faults(findings)) == {"store", "staging"}
    assert "PINPOINT_STAGING_DIR" in faults(findings)["staging"]


def test_a_fleet_that_the_cluster_can_not_hold_and_an_engine_that_is_not_there_are_named(services: RunningStack) -> None:
    fleet = {"name": "large", "engine": "sglang", "num_gpus": 8, "gpus_per_engine": 4, "engine_python": "/nowhere/python"}
    code, findings = asked("--store", services.file_url("doctor"), PINPOINT_FLEET=json.dumps(fleet))
    assert code == 1
    assert "2 engines need 2 CPUs and 8 GPUs; the cluster has 0 GPUs" in faults(findings)["capacity"]
    [engine] = [fault for piece, fault in faults(findings).items() if piece.startswith("engine on ")]
    assert "fleet.engine_python" in engine


def test_a_prefect_without_deployments_or_without_a_runner_is_named(
    services: RunningStack, empty_prefect: Stack, tmp_path: Path
) -> None:
    api, url = empty_prefect.prefect_api_url, services.file_url("doctor")
    code, findings = asked("--store", url, PINPOINT_PREFECT_API_URL=api)
    assert code == 1
    assert "not registered: evaluate_snapshot/pinpoint" in faults(findings)["deployments"]
    environment = {"PREFECT_API_URL": api, "PREFECT_HOME": str(tmp_path)}
    prefect("work-pool", "create", "pinpoint", "--type", "process", **environment)
    prefect("deploy", "--all", **environment)
    code, findings = asked("--store", url, PINPOINT_PREFECT_API_URL=api)
    assert code == 1
    assert list(faults(findings)) == ["runner"]
    assert "nobody asks for work of evaluate_snapshot/pinpoint" in faults(findings)["runner"]
    prefect("work-pool", "pause", "pinpoint", **environment)
    _, findings = asked("--store", url, PINPOINT_PREFECT_API_URL=api)
    assert "work pool pinpoint is paused" in faults(findings)["work pool"]


def test_a_page_that_is_no_prefect_api_and_an_engine_that_can_not_be_imported_are_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is not here')")
    (tmp_path / "file").touch()
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = bare_environment(
            PINPOINT_HOME=str(tmp_path),
            PINPOINT_PREFECT_API_URL=f"http://127.0.0.1:{server.server_port}",
            PINPOINT_STAGING_DIR=str(tmp_path / "file" / "staging"),
            PYTHONPATH=str(tmp_path),
        )
        command = [PINPOINT, "doctor", "--json", "--store", (tmp_path / "file").as_uri()]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        server.shutdown()
    assert done.returncode == 1, done.stderr
    found = faults(json.loads(done.stdout))
    assert set(found) == {"store", "staging", "Prefect", "engine here"}
    assert "which ends in /api" in found["Prefect"]
    assert "libcudart is not here" in found["engine here"]
    assert "PINPOINT_STORE_URL" in found["store"]


def test_services_that_do_not_answer_are_named_and_others_looked_at_all_the_same(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    environment = bare_environment(
        PINPOINT_HOME=str(tmp_path), PINPOINT_PREFECT_API_URL=f"http://{nobody}/api", PINPOINT_RAY_ADDRESS=nobody
    )
    done = subprocess.run(
        [PINPOINT, "doctor", "--json"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)
    assert set(faults(findings)) == {"Prefect", "Ray"}
    assert "store: read and write" in {one["piece"] for one in findings}

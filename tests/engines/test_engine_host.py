"""An engine is given its key and its threads by its host, and no other user of the machine can read the key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.engines.embedded.cli import API_KEY_VARIABLE, parse_options
from infra.fleet.engine_host import EngineHost, whole_threads
from infra.model import EvalPoint, FleetSpec, SnapshotRef
from infra.snapshot import describe, validate
from tests.engines.launching import START_TIMEOUT_S, RunningEngine

KEY = "0123456789abcdef-key"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineHost]:
    monkeypatch.setenv("PINPOINT_STAGING_DIR", str(tmp_path))
    made = EngineHost(name="eval-0", spec=FleetSpec(max_running_requests=4, cpus_per_engine=2.5), api_key=KEY)
    yield made
    made.stop()


def test_the_key_is_on_no_command_line_and_the_threads_are_the_cpus_of_the_host(host: EngineHost, first: Path) -> None:
    point = EvalPoint(run="run", step=1)
    snapshot = SnapshotRef(point=point, location=first.as_uri(), manifest=describe(first, validate(first), point), owned=False)
    ref = host.ensure(snapshot, START_TIMEOUT_S)
    line = (Path("/proc") / str(ref.pid) / "cmdline").read_bytes()
    assert b"infra.engines.embedded" in line
    assert KEY.encode() not in line
    assert RunningEngine(ref.base_url).get("/server_info").status_code == 401
    info = RunningEngine(ref.base_url, api_key=KEY).get("/server_info")
    assert info.json()["torch_threads"] == 2
    assert KEY not in info.text


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, "1"), (2.5, "2")])
def test_an_engine_gets_the_whole_cpus_of_its_host_as_threads_and_at_least_one(cpus: float, threads: str) -> None:
    assert whole_threads(cpus) == int(threads)


@pytest.mark.parametrize(
    ("arguments", "variable", "key"),
    [((), "", None), ((), "variable", "variable"), (("--api-key", "flag"), "variable", "flag")],
)
def test_the_key_is_the_flags_or_else_the_environments(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], variable: str, key: str | None
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, variable)
    assert parse_options(["--model-path", "m", *arguments]).api_key == key

"""Prefect, Ray and a runner on one machine, started together and gone together, however this process ends.

What the settings name as running elsewhere is used as it is and not started. The addresses are put in the environment, which
is where flows, tasks and Ray's workers read them.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from infra.config import Settings
from infra.errors import PortInUse, ServiceUnreachable
from infra.fleet.lease import check_ray
from infra.processes import start, stop
from trainer_integration.prefect_api import authorization

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
ANNOUNCEMENT = "stack.json"
PREFECT_PORT = 4200
SERVER_TIMEOUT_S = 180.0
RAY_TIMEOUT_S = 180.0
RUNNER_TIMEOUT_S = 180.0
PROBE_TIMEOUT_S = 3.0
REFUSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
PASSWORD_REMEDY = "set PREFECT_API_AUTH_STRING to the server's user:password"
PREFECT_ENVIRONMENT = {
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "flows,tasks,infra",
    "PREFECT_CLI_PROMPT": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Where the services of this machine are; `ui_url` is what a person opens.

    `owned` says that this process started them.
    """

    prefect_api_url: str
    ray_address: str
    logs: Path
    owned: bool = True

    @property
    def ui_url(self) -> str:
        return self.prefect_api_url.removesuffix("/api")


@contextmanager
def local_stack(settings: Settings, *, port: int | None = None, runner: bool = True) -> Iterator[Stack]:
    """Starts what the settings do not name, in order, and ends it in the reverse order.

    Raises PortInUse for an explicit `port` that is taken, ServiceUnreachable for a named service that does not answer.
    """
    home = settings.home.expanduser().absolute()
    if settings.prefect_api_url:
        check_prefect(settings.prefect_api_url)
    if settings.ray_address:
        check_ray(settings.ray_address)
    home.mkdir(parents=True, exist_ok=True)
    logs = home / "logs"
    with ExitStack() as started:
        started.enter_context(_environment(settings, home))
        api = settings.prefect_api_url or started.enter_context(_prefect_server(home, logs, port))
        os.environ.update(PREFECT_API_URL=api, PINPOINT_PREFECT_API_URL=api)
        ray_address = settings.ray_address or started.enter_context(_ray(logs))
        os.environ["PINPOINT_RAY_ADDRESS"] = ray_address
        stack = Stack(prefect_api_url=api, ray_address=ray_address, logs=logs)
        if runner:
            started.enter_context(local_runner(stack))
        yield stack


def check_prefect(api_url: str) -> None:
    """Raises ServiceUnreachable unless a Prefect API answers there now, and takes our credentials."""
    try:
        answer = httpx.get(f"{api_url}/admin/version", timeout=PROBE_TIMEOUT_S, headers=authorization())
    except httpx.HTTPError:
        raise ServiceUnreachable("Prefect", api_url, "start it (`pinpoint up`), or correct PINPOINT_PREFECT_API_URL") from None
    if answer.status_code in REFUSED:
        raise ServiceUnreachable("Prefect", api_url, f"it answers {answer.status_code}: {PASSWORD_REMEDY}")
    if answer.status_code != httpx.codes.OK or not answer.text.startswith('"'):  # its version, as JSON
        remedy = f"it answers {answer.status_code} to /admin/version: correct PINPOINT_PREFECT_API_URL, which ends in /api"
        raise ServiceUnreachable("Prefect", api_url, remedy)


@contextmanager
def _environment(settings: Settings, home: Path) -> Iterator[None]:
    """What children read, put back as it was afterwards."""
    before = dict(os.environ)
    os.environ.update(PREFECT_ENVIRONMENT, PINPOINT_HOME=str(home), PINPOINT_STAGING_DIR=str(settings.staging_dir))
    os.environ["PREFECT_HOME"] = str(home / "prefect")
    if secret := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):  # of a server that is started here
        os.environ.setdefault("PREFECT_API_AUTH_STRING", secret)
    if settings.secrets_block:
        os.environ["PINPOINT_SECRETS_BLOCK"] = settings.secrets_block
    if settings.sinks:
        os.environ["PINPOINT_SINKS"] = ",".join(settings.sinks)
    settings.export_s3()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _prefect_server(home: Path, logs: Path, port: int | None) -> Iterator[str]:
    chosen = _usable_port(port)
    api = f"http://{HOST}:{chosen}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(chosen)]
    log = logs / "prefect-server.log"
    process = start(command, log, {"PREFECT_HOME": str(home / "prefect"), "PREFECT_API_URL": api})
    try:
        _wait(process, lambda: _answers(f"{api}/health"), SERVER_TIMEOUT_S, "Prefect server", api, log)
        yield api
    finally:
        stop(process)


def _usable_port(port: int | None) -> int:
    """The port asked for, or Prefect's usual one, or any if that is taken and none was asked for."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port or PREFECT_PORT))
        except OSError:
            if port is not None:
                raise PortInUse(port, "the Prefect server", "--port") from None
            probe.bind((HOST, 0))
        chosen: int = probe.getsockname()[1]
        return chosen


@contextmanager
def _ray(logs: Path) -> Iterator[str]:
    """A Ray cluster with a session folder and token of its own that go with it; gives its address."""
    folder = Path(tempfile.mkdtemp(prefix="pinpoint-ray-", dir="/tmp"))  # short: Ray makes socket paths below it
    token, address, log = folder / "token", folder / "address", logs / "ray.log"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token), RAY_USAGE_STATS_ENABLED="0")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    process = start([sys.executable, "-m", "flows.ray_node", str(folder)], log, {})
    try:
        _wait(process, address.exists, RAY_TIMEOUT_S, "Ray", "this machine", log)
        yield address.read_text()
    finally:
        stop(process)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def local_runner(stack: Stack) -> Iterator[None]:
    """Runs the flows of a stack that was started without a runner. Raises ServiceUnreachable with what it said."""
    log, api = stack.logs / "runner.log", stack.prefect_api_url
    process = start([sys.executable, "-m", "flows.serve", "--end-with-parent"], log, {})
    deployment = f"{api}/deployments/name/evaluate_snapshot/pinpoint"
    try:
        _wait(process, lambda: _answers(deployment), RUNNER_TIMEOUT_S, "the runner", api, log)
        yield
    finally:
        stop(process, 30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PROBE_TIMEOUT_S, headers=authorization()).status_code == 200
    except httpx.HTTPError:
        return False


def _wait(
    process: subprocess.Popen[bytes], ready: Callable[[], bool], timeout_s: float, name: str, where: str, log: Path
) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        if ready():
            return
        time.sleep(0.1)
    last = " ".join(log.read_text(errors="replace").split())[-400:]
    raise ServiceUnreachable(name, where, f"it did not start; the end of {log}: {last}")


@contextmanager
def stack_of(settings: Settings, *, port: int | None = None, runner: bool = True, announce: bool = True) -> Iterator[Stack]:
    """The stack that `pinpoint up` or a demo runs for the same home, if one does; else one for the length of the body.

    Settings or a `port` that name something else are taken at their word. What is not announced is no other command's.
    """
    home = settings.home.expanduser().absolute()
    named = settings.prefect_api_url or settings.ray_address or port
    running = None if named else _announced(home)
    if running is None:
        with ExitStack() as started:
            stack = started.enter_context(local_stack(settings, port=port, runner=runner))
            if announce and _announced(home) is None:
                started.enter_context(_announcing(stack, home))
            yield stack
        return
    with _environment(settings, home):
        os.environ.update(PREFECT_API_URL=running["prefect_api_url"], PINPOINT_RAY_ADDRESS=running["ray_address"])
        os.environ.update(PINPOINT_PREFECT_API_URL=running["prefect_api_url"])
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=running["ray_token"])
        yield Stack(
            prefect_api_url=running["prefect_api_url"], ray_address=running["ray_address"], logs=home / "logs", owned=False
        )


def api_url_of(settings: Settings) -> str | None:
    """Prefect's API that the settings name, or that of a stack which runs for the same home; None if there is neither."""
    running = None if settings.prefect_api_url else _announced(settings.home.expanduser().absolute())
    return running["prefect_api_url"] if running else settings.prefect_api_url


def ray_address_of(settings: Settings) -> str:
    """The Ray cluster that the settings name, or that of a stack which runs for the same home, whose token is then used.

    Raises ServiceUnreachable if there is neither.
    """
    if settings.ray_address:
        return settings.ray_address
    running = _announced(settings.home.expanduser().absolute())
    if running is None:
        raise ServiceUnreachable("Ray", "(no address)", "nothing runs here: `pinpoint up`, or set PINPOINT_RAY_ADDRESS")
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=running["ray_token"])
    return running["ray_address"]


@contextmanager
def _announcing(stack: Stack, home: Path) -> Iterator[None]:
    """Tells other commands on this machine where the services are, for as long as they are there."""
    file = home / ANNOUNCEMENT
    facts = {
        "pid": os.getpid(),
        "prefect_api_url": stack.prefect_api_url,
        "ray_address": stack.ray_address,
        "ray_token": os.environ.get("RAY_AUTH_TOKEN_PATH", ""),
    }
    file.write_text(json.dumps(facts))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _announced(home: Path) -> dict[str, str] | None:
    try:
        facts: dict[str, str] = json.loads((home / ANNOUNCEMENT).read_text())
        os.kill(int(facts["pid"]), 0)
    except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError, KeyError):
        return None
    return facts if _answers(f"{facts['prefect_api_url']}/health") else None

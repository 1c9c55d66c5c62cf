"""A real PostgreSQL from the machine's packages, with a password, in a folder of its own, ended by its pid."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.ports import free_port

DEBIAN = Path("/usr/lib/postgresql")
USER = "pinpoint"
PASSWORD = "a password of the database"
START_TIMEOUT_S = 60


@dataclass(frozen=True)
class Postgres:
    port: int
    folder: Path

    @property
    def url(self) -> str:
        """As Prefect takes it."""
        return f"postgresql+asyncpg://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}/postgres"

    def asked(self, query: str) -> str:
        """The answer of psql, without decoration."""
        return self._told("psql", "-Atc", query).strip()

    def dumped(self) -> str:
        """Every row of every table."""
        return self._told("pg_dump", "--data-only")

    def _told(self, program: str, *arguments: str) -> str:
        command = [_program(program), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", "postgres", *arguments]
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Empty, and reachable with its password alone; as root it runs as Debian's user `postgres`, which it demands."""
    folder = Path(tempfile.mkdtemp(prefix="pinpoint-postgres-", dir="/tmp"))
    port = free_port()
    password = folder / "password"
    password.write_text(PASSWORD)
    data = folder / "data"
    if os.getuid() == 0:
        for path in (folder, password):
            shutil.chown(path, "postgres", "postgres")
    created = [_program("initdb"), "-D", str(data), "-U", USER, "--auth=scram-sha-256", f"--pwfile={password}", "-E", "UTF8"]
    subprocess.run(created, check=True, capture_output=True, timeout=120, **_as_owner())
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", "", "-F", "-c", "max_connections=200"]
    log = (folder / "log").open("wb")
    server = subprocess.Popen([_program("postgres"), "-D", str(data), *options], stdout=log, stderr=log, **_as_owner())
    try:
        _wait_until_ready(server, port, folder / "log")
        yield Postgres(port, folder)
    finally:
        server.send_signal(signal.SIGINT)  # fast shutdown: https://www.postgresql.org/docs/15/server-shutdown.html
        server.wait(30)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _as_owner() -> dict[str, Any]:
    owner: dict[str, Any] = {"cwd": "/"}
    if os.getuid() == 0:
        owner |= {"user": "postgres", "group": "postgres", "extra_groups": ()}
    return owner


def _program(name: str) -> str:
    """The newest that Debian's packages brought, or whatever is on the PATH."""
    newest = sorted(DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    found = str(newest[-1]) if newest else shutil.which(name)
    assert found, f"there is no {name} here: apt-get install postgresql (`make setup-test` does it as root)"
    return found


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    asking: Sequence[str] = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    deadline = time.monotonic() + START_TIMEOUT_S
    while subprocess.run(asking, check=False).returncode != 0:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)

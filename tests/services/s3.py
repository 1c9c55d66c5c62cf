"""A real S3 server (SeaweedFS) on loopback, with its own folder, credentials and ports, ended by its pid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.services.ports import free_ports

START_TIMEOUT_S = 180


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextmanager
def s3_server(folder: Path, *, volume_mb: int = 64) -> Iterator[S3Server]:
    """Boots in about a second; holds one empty bucket."""
    s3, master, volume, filer = free_ports(4)
    key, secret = "pinpoint-test", "pinpoint-test-secret"
    config = folder / "s3.json"
    data = folder / "data"
    data.mkdir(parents=True)
    identity = {"name": "test", "credentials": [{"accessKey": key, "secretKey": secret}], "actions": ["Admin"]}
    config.write_text(json.dumps({"identities": [identity]}))
    command = [str(Path(sys.executable).parent / "weed"), "server", f"-dir={data}", "-ip=127.0.0.1"]
    command += ["-ip.bind=127.0.0.1", "-master.telemetry=false", f"-master.port={master}", f"-volume.port={volume}"]
    command += [f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={config}", "-volume.max=20"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-master.volumeSizeLimitMB={volume_mb}"]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "GOMEMLIMIT": "400MiB"})
    try:
        server = S3Server(f"http://127.0.0.1:{s3}", key, secret, "pinpoint", process.pid)
        _wait_until_it_serves(process, server, folder / "weed.log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(3)  # its data is thrown away
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_serves(process: subprocess.Popen[bytes], server: S3Server, log: Path) -> None:
    import fsspec

    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(server.endpoint, timeout=1)
            options = {"key": server.access_key, "secret": server.secret_key, "endpoint_url": server.endpoint}
            fs = fsspec.filesystem("s3", skip_instance_cache=True, **options)
            if not fs.exists(server.bucket):
                fs.mkdir(server.bucket)
            fs.pipe_file(f"{server.bucket}/.ready", b"ready")
            fs.rm_file(f"{server.bucket}/.ready")
        except (httpx.HTTPError, OSError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the S3 server did not come up: {log.read_text()[-2000:]}")

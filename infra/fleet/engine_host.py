"""A Ray actor that owns one engine process: whatever ends the actor ends the engine, and its fetched snapshot with it.

Of an engine over several nodes it owns the part on its node; the first part listens, the others follow it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import httpx

from infra.config import load_settings
from infra.engines.launch import ALIVE_PATH, READY_PATH, Launch, Place, launch
from infra.engines.options import Options
from infra.errors import FleetUnhealthy
from infra.fetched import NodeCache
from infra.model import EngineRef, EngineStatus, FleetSpec, Manifest, Part, SnapshotRef
from infra.processes import fated, stop
from infra.reproduction import Coverage, reproduce

logger = logging.getLogger(__name__)
STOP_TIMEOUT_S = 5.0
POLL_S = 0.1
PROBE_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 2.0
INFO_PATH = "/model_info"


class EngineHost:
    """Runs on the node that Ray chose; all methods block, and Ray calls them one at a time."""

    def __init__(
        self, *, name: str, spec: FleetSpec, api_key: str, options: Options | None = None, part: Part | None = None
    ) -> None:
        """`options` are those of the engine's own parser, where it could be asked; `part` is by default all of the engine."""
        self.name, self.spec, self.api_key, self.options = name, spec, api_key, options
        self.part = part or Part()
        self.address = "127.0.0.1" if spec.bind == "loopback" else _node_address()
        settings = load_settings()
        settings.export_s3()
        self.cache = NodeCache(settings.staging_dir / "fetched" / spec.name, settings.fetched_bytes)
        self.process: subprocess.Popen[bytes] | None = None
        self.base_url = ""
        self.architecture = ""
        self.configuration = ""

    def usable(self, snapshot: SnapshotRef) -> bool:
        """Whether the engine is there, answers, and is of the snapshot's architecture; fetches the snapshot to this node."""
        return self._serves(self._loadable(snapshot)[2])

    def rendezvous(self) -> str:
        """Where the parts of an engine over several nodes meet, on this node: its address and a free port."""
        address = _node_address()
        return f"{address}:{_free_port(address)}"

    def ensure(self, snapshot: SnapshotRef, boot_timeout_s: float, rendezvous: str = "") -> EngineRef:
        """Makes the snapshot readable on this node and an engine of its architecture ready; gives the way to it.

        Raises FleetUnhealthy with the engine's last words if it does not come up in time.
        """
        folder, merged, architecture = self._loadable(snapshot)
        if not self._serves(architecture):
            self.stop()
            started = self._start(folder, boot_timeout_s, rendezvous)
            self.architecture = architecture
            self.configuration = started.configuration(self._engine_version(), architecture, _hardware())
        if self.process is None:
            raise FleetUnhealthy(f"engine {self.name} is gone right after its start")
        return EngineRef(
            name=self.name,
            base_url=self.base_url,
            pid=self.process.pid,
            checkpoint_path=str(folder),
            configuration=self.configuration,
            merged=merged,
        )

    def status(self) -> EngineStatus:
        """What the engine is and serves now, asked with short deadlines."""
        gone = self.process is None or self.process.poll() is not None
        try:
            version = "" if gone else str(self._get(INFO_PATH, STATUS_TIMEOUT_S).json()["weight_version"])
            state = "not running" if gone else "ready" if self._answers(READY_PATH, STATUS_TIMEOUT_S) else "paused or busy"
        except (httpx.HTTPError, ValueError, KeyError):
            version, state = "", "gives no answer"
        pid = self.process.pid if self.process and not gone else 0
        url = "" if gone else self.base_url
        return EngineStatus(
            name=self.name, state=state, node=socket.gethostname(), base_url=url, pid=pid, weight_version=version
        )

    def reproduce(self, checkpoint_path: str, held: Mapping[str, str], manifest: Manifest) -> Coverage:
        """What of an engine's checksums the snapshot on this node makes."""
        return reproduce(held, Path(checkpoint_path), manifest)

    def evict(self) -> None:
        """Forgets fetched snapshots; called when a lease ends, so nobody reads them."""
        self.cache.evict()

    def stop(self) -> None:
        """Ends the engine process, by force if it does not go."""
        if self.process is None:
            return
        stop(self.process, STOP_TIMEOUT_S)
        self.process = None

    def _serves(self, architecture: str) -> bool:
        return self.architecture == architecture and self._answers(ALIVE_PATH, PROBE_TIMEOUT_S)

    def _loadable(self, snapshot: SnapshotRef) -> tuple[Path, Manifest | None, str]:
        """The folder to load, what is in it if that is a merge, and a digest of the architecture that it is of."""
        folder, merged = self.cache.loadable(snapshot)
        return folder, merged, (merged or snapshot.manifest).files["config.json"].digest

    def _start(self, folder: Path, timeout_s: float, rendezvous: str) -> Launch:
        port, threads = _free_port(self.address), whole_threads(self.spec.cpus_per_engine)
        self.base_url = f"http://{self.address}:{port}"
        place = Place(
            folder=folder,
            address=self.address,
            port=port,
            api_key=self.api_key,
            threads=threads,
            part=self.part,
            rendezvous=rendezvous,
        )
        starting = launch(self.spec, place, self.options)
        words = Path(os.environ.get("TMPDIR", "/tmp")) / f"pinpoint-engine-{os.getpid()}.log"
        with words.open("w+b") as log:
            words.unlink()
            self.process = subprocess.Popen(
                fated(starting.command, signal.SIGKILL),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **starting.environment},
                start_new_session=True,
            )
            self._wait_until_ready(self.process, log, timeout_s)
        logger.info("engine %s ready at %s, pid %d", self.name, self.base_url, self.process.pid)
        return starting

    def _wait_until_ready(self, process: subprocess.Popen[bytes], log: IO[bytes], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and process.poll() is None:
            if self._answers(READY_PATH, STATUS_TIMEOUT_S):
                return
            time.sleep(POLL_S)
        ended = process.poll()
        self.stop()
        log.seek(0)
        last = " ".join(log.read().decode(errors="replace").split())[-600:]
        how = f"ended with code {ended}" if ended is not None else f"was not ready within {timeout_s:g} s"
        raise FleetUnhealthy(f"engine {self.name} {how}: {last}")

    def _answers(self, path: str, timeout_s: float) -> bool:
        """Whether the engine is there and says yes. A hung one gives no answer in time; of a part that follows it is enough
        that it runs, since the first one does not answer without it."""
        if self.process is None or self.process.poll() is not None:
            return False
        if self.part.rank:
            return True
        try:
            return self._get(path, timeout_s).status_code == 200
        except httpx.HTTPError:
            return False

    def _engine_version(self) -> str:
        """What the engine calls its own release; empty if it does not say."""
        if self.part.rank:
            return ""
        try:
            return str(self._get(ALIVE_PATH, PROBE_TIMEOUT_S).json().get("version", ""))
        except (httpx.HTTPError, ValueError):
            return ""

    def _get(self, path: str, timeout_s: float) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.api_key}"}
        return httpx.get(f"{self.base_url}{path}", timeout=timeout_s, headers=headers)


def whole_threads(cpus: float) -> int:
    """What an engine computes with; of less than one CPU it gets a thread all the same."""
    return max(1, int(cpus))


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _hardware() -> str:
    """The kind of GPU or CPU, which some engines lay weights out for."""
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = (gpus[0] if gpus else Path("/proc/cpuinfo")).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.lower().startswith("model")), "")

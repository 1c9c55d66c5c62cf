"""One interface, two engines: both are a process that serves SGLang's protocol, and differ in how it is started.

Its key is handed over by the environment, which other users of the machine can't read, unlike a command line.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.engines.embedded.cli import API_KEY_VARIABLE as EMBEDDED_KEY
from infra.engines.options import LAUNCHER, OFFLINE, Options, interpreter, render, settle
from infra.engines.sglang import API_KEY_VARIABLE as SGLANG_KEY
from infra.model import FleetSpec, Part

READY_PATH = "/ready"  # for the start alone: an engine that is paused is not ready
ALIVE_PATH = "/server_info"  # a round trip to the part that generates, paused or not
UNPINNED = "unpinned"
ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an engine is given by its host. `threads` are those it computes with on a CPU.

    An engine over several nodes is as many processes, each its `part`, which meet at `rendezvous`.
    """

    folder: Path
    address: str
    port: int
    api_key: str
    threads: int
    part: Part = field(default_factory=Part)
    rendezvous: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start, and what its settings are beyond its place."""

    command: list[str]
    environment: Mapping[str, str]
    settings: Mapping[str, Any]

    def configuration(self, version: str, architecture: str, hardware: str) -> str:
        """A digest of all that decides how the engine holds a snapshot."""
        whole = json.dumps([dict(self.settings), version, architecture, hardware], sort_keys=True, default=str)
        return hashlib.sha256(whole.encode()).hexdigest()[:32]


def launch(spec: FleetSpec, place: Place, options: Options | None = None) -> Launch:
    """How an engine of the fleet is started; `options` are those of its parser, where that could be asked."""
    return _LAUNCHES[spec.engine](spec, place, options)


def _embedded(spec: FleetSpec, place: Place, options: Options | None) -> Launch:
    settings = settle(spec, options)
    command = [sys.executable, "-m", "infra.engines.embedded", *_placed(place)]
    command += [*render(settings, options), "--torch-threads", str(place.threads)]
    return Launch(command=command, environment={EMBEDDED_KEY: place.api_key}, settings={"engine": "embedded", **settings})


def _sglang(spec: FleetSpec, place: Place, options: Options | None) -> Launch:
    settings = settle(spec, options)
    sizes = ["--tp-size", str(max(1, spec.gpus_per_engine))]
    command = [*interpreter(spec), str(LAUNCHER), *_placed(place), *sizes, *_parted(place), *render(settings, options)]
    environment = {**OFFLINE, SGLANG_KEY: place.api_key}
    if settings.get("device") == "cpu":
        environment |= {**ON_CPU, "OMP_NUM_THREADS": str(place.threads)}
    return Launch(command=command, environment=environment, settings={"engine": "sglang", "tp_size": sizes[1], **settings})


def _placed(place: Place) -> list[str]:
    where = ["--host", place.address, "--port", str(place.port)]
    return ["--model-path", str(place.folder), *where, "--weight-version", UNPINNED]


def _parted(place: Place) -> list[str]:
    if place.part.of == 1:
        return []
    return ["--nnodes", str(place.part.of), "--node-rank", str(place.part.rank), "--dist-init-addr", place.rendezvous]


_LAUNCHES: dict[str, Callable[[FleetSpec, Place, Options | None], Launch]] = {"embedded": _embedded, "sglang": _sglang}

"""A server of one's own is pinned to the snapshot and proved like an engine of a fleet, then asked the suite's questions.

Settings: `url`, one or a list, and `api_key_variable`, the environment variable that holds their key, to attach to servers that
run already; or fields of FleetSpec (`engine`, `engine_args`, `engine_python`, `gpus_per_engine`) and `gpus`, to launch one here
for this point. `samples_dir`, if given, gets the samples as JSON lines, a file a dataset.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from infra.concurrency import gather_all
from infra.config import parse
from infra.datasets import load_problems
from infra.errors import ConfigError, UnknownKey
from infra.fleet.engine_host import EngineHost
from infra.model import DatasetSpec, EngineRef, EvalPoint, FleetLease, FleetSpec, Manifest, PinnedFleet, SnapshotRef, Suite
from infra.pinning import pin
from infra.prompts import renderer_of
from infra.running import run_samples
from infra.statistics import coverage_and_bounds, estimate, prompt_means
from infra.store import path_of

ATTACH, OTHER = ("url", "api_key_variable"), ("gpus", "samples_dir")
_MANIFEST = TypeAdapter(Manifest)


class ExternalSGLang:
    """Attaches to servers, or launches one; what is not of its settings is refused by name."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        known = [*ATTACH, *OTHER, *FleetSpec.model_fields]
        for name in settings:
            if name not in known:
                raise UnknownKey(name, where="settings of ExternalSGLang", known=known)
        self.settings = settings
        urls = settings.get("url") or ()
        self.urls = [urls] if isinstance(urls, str) else list(urls)
        own = {name: value for name, value in settings.items() if name in FleetSpec.model_fields}
        if self.urls and own:
            raise ConfigError(f"ExternalSGLang attaches to {self.urls[0]}, so {min(own)} has no effect: leave it out, or url")
        self.host = None if self.urls else _host(own, settings.get("gpus"))

    async def evaluate_checkpoint(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> Mapping[str, float]:
        """Raises what pinning raises: a server that holds something else has no number."""
        point = EvalPoint(run=input["run"], step=input["step"], attempt=input["attempt"], final=input["final"])
        manifest = _MANIFEST.validate_python(input["manifest"])
        location = f"file://{quote(str(checkpoint_dir))}"
        snapshot = SnapshotRef(point=point, location=location, manifest=manifest, owned=False)
        engines, key = await asyncio.to_thread(self._engines, snapshot)
        lease = FleetLease(fleet="external", epoch=0, holder=point.name, ttl_s=0.0, engines=engines, api_key=key)
        pinned = await pin(lease, snapshot)
        suite = Suite.model_validate(input["suite"])
        scores = await gather_all(self._measure(pinned, dataset) for dataset in suite.datasets)
        return {name: value for score in scores for name, value in score.items()}

    async def dispose(self) -> None:
        if self.host is not None:
            await asyncio.to_thread(self.host.stop)

    def _engines(self, snapshot: SnapshotRef) -> tuple[tuple[EngineRef, ...], str]:
        if self.host is not None:
            return (self.host.ensure(snapshot, self.host.spec.boot_timeout_s),), self.host.api_key
        folder = str(path_of(snapshot.location))
        engines = [EngineRef(name=url, base_url=url.rstrip("/"), pid=0, checkpoint_path=folder) for url in self.urls]
        return tuple(engines), os.environ.get(str(self.settings.get("api_key_variable")), "")

    async def _measure(self, pinned: PinnedFleet, spec: DatasetSpec) -> dict[str, float]:
        problems = await asyncio.to_thread(load_problems, spec)
        render = await asyncio.to_thread(renderer_of, pinned) if spec.apply_chat_template else str
        samples = await run_samples(pinned, spec, problems, render)
        if folder := self.settings.get("samples_dir"):
            lines = "".join(json.dumps(asdict(sample)) + "\n" for sample in samples)
            await asyncio.to_thread((Path(folder) / f"{spec.name}.jsonl").write_text, lines)
        score, (coverage, _, _) = estimate(prompt_means(samples)), coverage_and_bounds(samples)
        found = {f"{spec.name}/coverage": coverage}
        return found if score is None else {spec.name: score.mean, f"{spec.name}/stderr": score.stderr, **found}


def _host(own: Mapping[str, Any], gpus: Any) -> EngineHost:
    """One engine, on the GPUs that are named."""
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        own = {"gpus_per_engine": len(gpus), **own}
    each = own.get("gpus_per_engine", 0)
    spec = parse(FleetSpec, {"name": "external", "num_engines": 1, "num_gpus": each, **own}, where="settings of ExternalSGLang")
    return EngineHost(name=spec.name, spec=spec, api_key=secrets.token_hex(16))

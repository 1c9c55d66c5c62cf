"""An evaluation's own engine is pinned to the snapshot and proved like an engine of a fleet, or there is no number.

It is a server that runs already (`url`, `api_key_variable`), or one launched here for the point (FleetSpec's fields, `gpus`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from infra.config import parse
from infra.errors import ConfigError, UnknownKey
from infra.fleet.engine_host import EngineHost
from infra.model import EngineRef, EvalPoint, FleetLease, FleetSpec, Manifest, PinnedFleet, SnapshotRef
from infra.pinning import pin
from infra.store import path_of

FIELDS = ("url", "api_key_variable", "gpus", *FleetSpec.model_fields)
_MANIFEST = TypeAdapter(Manifest)


class OwnEngine:
    """What is neither a setting of the engine nor one of `others`, those of the evaluation itself, is refused by name."""

    def __init__(self, settings: Mapping[str, Any], *, owner: str, others: Collection[str]) -> None:
        known = [*FIELDS, *others]
        for name in settings:
            if name not in known:
                raise UnknownKey(name, where=f"settings of {owner}", known=known)
        urls = settings.get("url") or ()
        self.urls = [urls] if isinstance(urls, str) else list(urls)
        self.key_variable = str(settings.get("api_key_variable"))
        own = {name: value for name, value in settings.items() if name in FleetSpec.model_fields}
        if self.urls and own:
            raise ConfigError(f"{owner} attaches to {self.urls[0]}, so {min(own)} has no effect: leave it out, or url")
        self.host = None if self.urls else _host(own, settings.get("gpus"), f"settings of {owner}")

    async def pinned(self, checkpoint_dir: Path, input: Mapping[str, Any]) -> PinnedFleet:
        """Raises what pinning raises: a server that holds something else has no number."""
        point = EvalPoint(run=input["run"], step=input["step"], attempt=input["attempt"], final=input["final"])
        manifest = _MANIFEST.validate_python(input["manifest"])
        location = f"file://{quote(str(checkpoint_dir))}"
        snapshot = SnapshotRef(point=point, location=location, manifest=manifest, owned=False)
        engines, key = await asyncio.to_thread(self._engines, snapshot)
        lease = FleetLease(fleet="external", epoch=0, holder=point.name, ttl_s=0.0, engines=engines, api_key=key)
        return await pin(lease, snapshot)

    async def stop(self) -> None:
        """Ends what was launched; a server that was attached to goes on."""
        if self.host is not None:
            await asyncio.to_thread(self.host.stop)

    def _engines(self, snapshot: SnapshotRef) -> tuple[tuple[EngineRef, ...], str]:
        if self.host is not None:
            return (self.host.ensure(snapshot, self.host.spec.boot_timeout_s),), self.host.api_key
        folder = str(path_of(snapshot.location))
        engines = [EngineRef(name=url, base_url=url.rstrip("/"), pid=0, checkpoint_path=folder) for url in self.urls]
        return tuple(engines), os.environ.get(self.key_variable, "")


def _host(own: Mapping[str, Any], gpus: Any, where: str) -> EngineHost:
    """One engine, on the GPUs that are named."""
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        own = {"gpus_per_engine": len(gpus), **own}
    each = own.get("gpus_per_engine", 0)
    spec = parse(FleetSpec, {"name": "external", "num_engines": 1, "num_gpus": each, **own}, where=where)
    return EngineHost(name=spec.name, spec=spec, api_key=secrets.token_hex(16))

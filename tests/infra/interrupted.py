"""A process of its own that runs a dataset on fake engines, to be killed: `python -m tests.infra.interrupted SETTINGS`."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.model import EngineRef, FleetLease, PinnedFleet, Problem
from infra.running import load, stream_samples
from infra.running.sample_log import SampleLog
from infra.running.spool import Spool
from infra.store import Store
from tests.infra.examples import SNAPSHOT, dataset, proof


def problems(count: int) -> list[Problem]:
    return [Problem(id=f"p{n}", prompt=f"{n}+1=", answer=str(n + 1), entry={}) for n in range(count)]


def pinned_to(*urls: str) -> PinnedFleet:
    refs = tuple(
        EngineRef(name=f"engine-{n}", base_url=url, pid=1, checkpoint_path="/x", configuration="c")
        for n, url in enumerate(urls)
    )
    lease = FleetLease(fleet="eval", epoch=1, holder="test", ttl_s=60.0, engines=refs, api_key="")
    return PinnedFleet(lease=lease, snapshot=SNAPSHOT, proofs=tuple(proof(ref.name) for ref in refs))


async def run(urls: list[str], store_url: str, count: int, at_once: int) -> str:
    """The samples as JSON lines."""
    load.REQUESTS_PER_ENGINE = load.MOST_PER_ENGINE = at_once
    pinned, spec, rows = pinned_to(*urls), dataset(samples_per_prompt=2), problems(count)
    log = SampleLog.of(Store(store_url), pinned, "suite", spec, rows)
    with Spool(rows, 2) as spool:
        await stream_samples(pinned, spec, rows, str, spool, log=log)
        return "".join(json.dumps(asdict(sample)) + "\n" for sample in spool)


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    samples = Path(settings.pop("samples"))
    samples.write_text(asyncio.run(run(**settings)))


if __name__ == "__main__":
    main()

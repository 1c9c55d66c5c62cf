"""What it costs to prove what an engine holds, beside the load that has to be proved, in the same run.

    python -m benchmarks.pin [--megabytes 500] [--rounds 5] [--engine embedded|sglang] [--json]

One real engine loads two snapshots in turn. `load` is what would be paid without any proof: the fetch to the node, where there
is one, and the engine's own `update_weights_from_disk`. `verification` is all the rest of `infra.pinning.pin`: the label read
back, the canary before and after, the engine's checksums, and these made again from the snapshot's bytes. Three kinds of load:
`cached`, from files that the machine has in memory, where a load is one copy; `disk`, from files that it has not; `fetched`,
from a real S3 server into memory. The ratios are of medians; the goal is 0.1 for a load from where a snapshot comes from.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from infra.export import complete, send
from infra.fleet.engine_host import EngineHost
from infra.leases import acquire, owner_of
from infra.model import EvalPoint, FleetLease, FleetSpec, ProofLevel, SnapshotRef
from infra.pinning import pin
from infra.snapshot import describe, validate
from infra.store import Store
from tests.services.s3 import s3_server
from tests.sglang.environment import interpreter
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

KINDS = ("cached", "disk", "fetched")
HIDDEN = 1024
BYTES_PER_LAYER = 4 * 15 * HIDDEN**2  # float32; attention has 6, the MLP 9 times the square
KEY = "benchmark"
START_TIMEOUT_S = 400.0


def snapshots_in(folder: Path, megabytes: int) -> list[Path]:
    layers = max(1, round(megabytes * 2**20 / BYTES_PER_LAYER))
    folders = [folder / str(seed) for seed in (1, 2)]
    for seed, place in enumerate(folders):
        build_model(seed, hidden=HIDDEN, layers=layers).save_pretrained(place)
        build_tokenizer().save_pretrained(place)
    return folders


def local(folder: Path, step: int) -> SnapshotRef:
    point = EvalPoint(run="benchmark", step=step)
    return SnapshotRef(point=point, location=folder.as_uri(), manifest=describe(folder, validate(folder), point), owned=False)


def sent(folder: Path, step: int, store: Store) -> SnapshotRef:
    """The same in a store, as an export leaves it."""
    here, prefix = local(folder, step), f"snapshots/benchmark/{step}"

    async def export() -> None:
        acquire(store, prefix, owner=owner_of(here.point), purpose="export")
        await send(store, folder, here.manifest.files, prefix)
        await complete(store, prefix, here.manifest, owner_of(here.point))

    asyncio.run(export())
    return replace(here, location=store.url_of(prefix))


def forget(folder: Path) -> None:
    """The next read of the folder's files comes from the disk."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fdatasync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def pinned_in(host: EngineHost, snapshot: SnapshotRef) -> tuple[float, float]:
    """Seconds of the load, and of its verification."""
    started = time.perf_counter()
    ref = await asyncio.to_thread(host.ensure, snapshot, START_TIMEOUT_S)
    fetched = time.perf_counter()
    lease = FleetLease(fleet="benchmark", epoch=1, holder="benchmark", ttl_s=60, engines=(ref,), api_key=KEY)
    [proof] = (await pin(lease, snapshot)).proofs
    load = fetched - started + proof.load_seconds
    if proof.level is not ProofLevel.CONTENT:
        raise SystemExit(f"the engine's content was not proved, only its {proof.level.value}: there is nothing to compare")
    return load, time.perf_counter() - started - load


def measure(spec: FleetSpec, megabytes: int, rounds: int, work: Path) -> dict[str, float]:
    folders = snapshots_in(work / "models", megabytes)
    loads, proofs = (defaultdict[str, list[float]](list) for _ in range(2))
    with ExitStack() as stack:
        server = stack.enter_context(s3_server(work / "s3", volume_mb=1024))
        os.environ.update(server.environment)
        store = Store(f"s3://{server.bucket}/benchmark")
        there = [sent(folder, step, store) for step, folder in enumerate(folders, 1)]
        here = [local(folder, step) for step, folder in enumerate(folders, 1)]
        host = EngineHost(name="benchmark-0", spec=spec, api_key=KEY)
        stack.callback(host.evict)
        stack.callback(host.stop)
        host.ensure(here[0], START_TIMEOUT_S)
        for turn in range(-1, rounds):  # the first one warms up
            for kind in KINDS:
                for folder, near, far in zip(folders, here, there, strict=True):
                    if kind == "disk":
                        forget(folder)
                    load, proof = asyncio.run(pinned_in(host, far if kind == "fetched" else near))
                    if turn >= 0:
                        loads[kind].append(load)
                        proofs[kind].append(proof)
    found: dict[str, float] = {"megabytes": round(here[0].manifest.n_bytes / 2**20)}
    for kind in KINDS:
        load, proof = statistics.median(loads[kind]), statistics.median(proofs[kind])
        found |= {f"load_s_{kind}": round(load, 3), f"verification_s_{kind}": round(proof, 3)}
        found[f"verification_vs_load_{kind}"] = round(proof / load, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=("embedded", "sglang"), default="embedded")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    given = {"engine": arguments.engine, "cpus_per_engine": float(os.cpu_count() or 1), "boot_timeout_s": START_TIMEOUT_S}
    if arguments.engine == "sglang":
        python = interpreter()
        if python is None:
            raise SystemExit("SGLang's own environment is not there: `make test-sglang` builds it")
        given |= {"engine_python": str(python), "engine_args": {"max_total_tokens": 4096, "max_running_requests": 8}}
    with tempfile.TemporaryDirectory(prefix="pinpoint-pin-") as work:
        os.environ["PINPOINT_HOME"] = work
        found = measure(FleetSpec(name="benchmark", **given), arguments.megabytes, arguments.rounds, Path(work))
    print(json.dumps(found) if arguments.json else "\n".join(f"{name:28} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()

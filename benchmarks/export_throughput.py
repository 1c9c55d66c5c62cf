"""How fast a snapshot reaches a store, beside a plain parallel copy of the same bytes to the same store, in the same run.

    python -m benchmarks.export_throughput [--megabytes 512] [--rounds 3] [--json]

Ours digests every byte as it passes (xxh3-128, by tensor), takes a lease, notes each file, and writes the manifest last. The
baseline is the libraries' own copy of the same files, as many at once, and nothing else: `shutil.copyfile` and `fdatasync`
to a folder (ours is on the disk before its manifest says so), `s3fs.put_file` with the same parts to S3. Rounds alternate,
each into a fresh prefix, and the ratio is of medians. `throughput_vs_plain_copy` above 1 means that ours was the faster; the
goal is 0.8. `vs_page_cache_copy`, to a folder, is against a copy that does not wait for the disk, as ours then must not
either. `memory_mb` is by how much one export made a fresh process grow: infra/export.py states 128 MiB and as much again
in the client, whatever the size of the model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.numpy import save_file

from infra.export import FILES_AT_ONCE, complete, send
from infra.leases import acquire, owner_of
from infra.model import EvalPoint
from infra.s3_objects import PART_BYTES, PARTS_AT_ONCE
from infra.snapshot import assemble
from infra.store import Store
from tests.services.s3 import s3_server
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

POINT = EvalPoint(run="benchmark", step=0)
SHARDS = 4


def checkpoint(folder: Path, megabytes: int) -> list[str]:
    """Random weights in four shards, with the small files that a checkpoint has; gives the names of all files."""
    build_tokenizer().save_pretrained(folder)
    build_model(0, hidden=32, layers=1).config.save_pretrained(folder)
    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        size = megabytes * 2**20 // SHARDS // 4
        save_file({f"w{shard}": random.standard_normal(size, dtype=np.float32)}, folder / f"model-{shard}.safetensors")
    return sorted(file.name for file in folder.iterdir())


def plain_copy(store: Store, folder: Path, names: list[str], durable: bool) -> float:
    prefix = f"plain/{uuid.uuid4().hex}"

    def copy(name: str) -> None:
        target = store.local_path(f"{prefix}/{name}")
        if target is None:
            path = store._path(f"{prefix}/{name}")
            store._s3.fs.put_file(str(folder / name), path, chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target)
        if durable:
            with target.open("rb+") as file:
                os.fdatasync(file.fileno())

    started = time.perf_counter()
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        list(pool.map(copy, names))
    seconds = time.perf_counter() - started
    store.delete(prefix)
    return seconds


def ours(store: Store, folder: Path, names: list[str], durable: bool) -> float:
    prefix = f"snapshots/benchmark/{uuid.uuid4().hex}"

    async def export() -> None:
        acquire(store, prefix, owner=owner_of(POINT), purpose="export")
        sent = await send(store, folder, names, prefix)
        await complete(store, prefix, assemble(sent.files, sent.tensors, POINT), owner_of(POINT))

    started = time.perf_counter()
    with nullcontext() if durable else mock.patch("os.fdatasync"):
        asyncio.run(export())
    seconds = time.perf_counter() - started
    store.delete(prefix)
    return seconds


def memory_mb(url: str, folder: Path, names: list[str]) -> int:
    """In a process of its own; the library, and a connection, are there before it is measured."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        grown: int = pool.apply(_grown_mb, (url, folder, names))
    return grown


def _grown_mb(url: str, folder: Path, names: list[str]) -> int:
    store = Store(url)
    store.check()
    before = _peak_kb()
    ours(store, folder, names, durable=True)
    return (_peak_kb() - before) // 1024


def _peak_kb() -> int:
    """Not `ru_maxrss`, which a process inherits from the one that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(store: Store, folder: Path, names: list[str], rounds: int) -> dict[str, float]:
    result = {}
    kinds = {"plain_copy": True, "page_cache_copy": False} if store.is_local else {"plain_copy": True}
    for kind, durable in kinds.items():
        plain_copy(store, folder, names, durable)  # warms caches and connections
        plain, own = [], []
        for _ in range(rounds):
            plain.append(plain_copy(store, folder, names, durable))
            own.append(ours(store, folder, names, durable))
        result[f"{kind}_s"] = round(statistics.median(plain), 3)
        result[f"ours_s_vs_{kind}"] = round(statistics.median(own), 3)
        ratio = round(statistics.median(plain) / statistics.median(own), 3)
        result["throughput_vs_plain_copy" if durable else "vs_page_cache_copy"] = ratio
    return {**result, "memory_mb": memory_mb(store.url, folder, names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder) / "s3", volume_mb=4096) as s3:
        source = Path(folder) / "checkpoint"
        names = checkpoint(source, arguments.megabytes)
        stores: dict[str, Callable[[], Store]] = {
            "file": lambda: Store((Path(folder) / "store").as_uri()),
            "s3": lambda: Store(f"s3://{s3.bucket}/benchmark"),
        }
        with mock.patch.dict(os.environ, s3.environment):
            for kind, opened in stores.items():
                results[kind] = measure(opened(), source, names, arguments.rounds)
    if arguments.json:
        print(json.dumps({"megabytes": arguments.megabytes, **results}))
        return
    for kind, result in results.items():
        print(f"{kind:5}", ", ".join(f"{name} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()

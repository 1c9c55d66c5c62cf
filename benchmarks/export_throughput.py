"""How fast a snapshot reaches a store, beside a plain parallel copy of the same bytes to the same store, in the same run.

    python -m benchmarks.export_throughput [--megabytes 512] [--rounds 3] [--json]

Ours reads every byte twice, once for its digest (xxh3-128) and once to send it, and writes the manifest last. The baseline
sends the same files, as many at once, and nothing else. Rounds alternate, each into a fresh prefix; the ratio is of medians.
`throughput_vs_plain_copy` above 1 means that ours was the faster; the goal is 0.8. `digest_share` is hashing's part of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.numpy import save_file

from infra.export import PARALLEL_UPLOADS, send
from infra.model import EvalPoint
from infra.snapshot import describe
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


def plain_copy(store: Store, folder: Path, names: list[str]) -> float:
    prefix = f"plain/{uuid.uuid4().hex}"
    started = time.perf_counter()
    with ThreadPoolExecutor(PARALLEL_UPLOADS) as pool:
        list(pool.map(lambda name: store.upload(folder / name, f"{prefix}/{name}"), names))
    seconds = time.perf_counter() - started
    store.delete(prefix)
    return seconds


def ours(store: Store, folder: Path, names: list[str]) -> tuple[float, float]:
    """Seconds of all of it, and of hashing alone."""
    prefix = f"snapshots/benchmark/{uuid.uuid4().hex}"
    started = time.perf_counter()
    manifest = describe(folder, names, POINT)
    hashed = time.perf_counter() - started
    asyncio.run(send(store, folder, manifest, prefix))
    seconds = time.perf_counter() - started
    store.delete(prefix)
    return seconds, hashed


def measure(store: Store, folder: Path, names: list[str], rounds: int) -> dict[str, float]:
    plain_copy(store, folder, names)  # warms caches and connections
    plain, own, hashed = [], [], []
    for _ in range(rounds):
        plain.append(plain_copy(store, folder, names))
        seconds, digest = ours(store, folder, names)
        own.append(seconds)
        hashed.append(digest)
    return {
        "plain_copy_s": round(statistics.median(plain), 3),
        "ours_s": round(statistics.median(own), 3),
        "throughput_vs_plain_copy": round(statistics.median(plain) / statistics.median(own), 3),
        "digest_share": round(statistics.median(hashed) / statistics.median(own), 3),
    }


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

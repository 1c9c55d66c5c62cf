"""For how long an export stops training, side by side in one run, on two ranks that hold a Megatron-Core model together.

    python -m benchmarks.trainer_stall [--megabytes 1024] [--rounds 7] [--json]

(a) the usual scheme: each parameter is gathered to rank 0, which converts and writes all of it to a file on disk, without
syncing it, while the other rank waits; (b) ours: each rank copies what it holds into the staged files in memory, which are
filled again (`reuse_memory`, in its third export and later); (c) the bare copy: each rank copies its own parameters into memory
of its own whose pages exist, where no other process can see them. Beside these, `fresh`: ours into new files; `fresh_copy`: (c)
into new memory; and `one_file`: each rank writes its parameters as they lie into one new file in memory. The order alternates
from round to round. A stall is the slower rank's; ratios are medians of the rounds' ratios. On a machine with as many cores as
ranks, whatever else runs there makes (b) and (c) slower and (a), in which one rank idles, hardly.

What each ratio compares, and its goal; those with `fresh_` are of ours into new files:
  stall_vs_rank0_serial        ours / (a): 0.2               fresh_stall_vs_rank0_serial  fresh / (a): 0.2
  stall_vs_copy                ours / (c), both warm: 1.5    fresh_stall_vs_copy          fresh / fresh_copy, both cold: 1.5
  stall_vs_fresh_copy, stall_vs_one_file: ours / fresh_copy and ours / one_file, warm against cold, no goal
  loop_cost_vs_rank0_serial    ours / (a), of `loop_cost`: a single measurement of each, no median

`loop_cost` adds to the stall by how much later steps are slowed, until the snapshot is in a store on disk: after (b) a process
of low priority hashes and sends it. `on_step_ms_median` is what a due `on_step` costs besides the export, in milliseconds, in a
job of one rank: medians in four states of Prefect, of which it is the worst; with more ranks their exchanges come on top. Its
goal is 2.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.on_step import on_step_ms
from infra.store import Store
from infra.validation.layout import read_contents
from infra.validation.readers import LocalFolder
from tests.services.ranks import on_ranks
from trainer_integration.sharded.blocks import Part, Shape

RANKS, HIDDEN, VOCABULARY = 2, 1024, 32_000
STEP_SIDE = 700  # of the matrices that a training step multiplies; about 50 ms
QUIET_STEPS, SETTLE_S, WARM_UP_ROUNDS = 40, 0.3, 2
RATIOS = {
    "stall_vs_rank0_serial": ("ours", "serial"),
    "stall_vs_copy": ("ours", "copy"),
    "stall_vs_fresh_copy": ("ours", "fresh_copy"),
    "stall_vs_one_file": ("ours", "one_file"),
    "fresh_stall_vs_rank0_serial": ("fresh", "serial"),
    "fresh_stall_vs_copy": ("fresh", "fresh_copy"),
}


def hf_config(megabytes: int) -> Any:
    from transformers import Qwen3Config

    a_layer = HIDDEN * (4 * HIDDEN + 2 * HIDDEN + 3 * 3 * HIDDEN)
    layers = max(1, round((megabytes * 2**20 / 4 - VOCABULARY * HIDDEN) / a_layer))
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


class Rank:
    """One rank's side of the benchmark; every method that measures is collective."""

    def __init__(self, rank: int, memory: Path, disk: Path, megabytes: int) -> None:
        import torch

        from tests.megatron.cpu_model import build, initialize
        from trainer_integration.megatron.exporter import MegatronExporter
        from trainer_integration.sharded.metadata import ModelFiles
        from trainer_integration.tiny_trainer.model import build_tokenizer

        initialize(RANKS, 1)
        self.rank, self.memory, self.disk = rank, memory, disk
        self.config = hf_config(megabytes)
        self.chunks = build(self.config, RANKS, 1)
        files = ModelFiles.of(self.config, build_tokenizer())
        self.exporter = MegatronExporter(self.chunks, files)
        self.reusing = MegatronExporter(self.chunks, files).reuse_memory(memory / "spare")
        self.n_bytes = self.exporter.prepare().n_bytes
        self.matrix = torch.rand(STEP_SIDE, STEP_SIDE)
        self.warm = [parameter.detach().clone() for parameter in self.chunks[0].parameters()]
        self.clones: list[Any] = []

    def step(self) -> None:
        """All ranks compute for a while, then agree, as they do on gradients."""
        import torch
        import torch.distributed as dist

        for _ in range(4):
            self.matrix = torch.tanh(self.matrix @ self.matrix)
        dist.all_reduce(self.matrix[:1].clone())

    def timed(self, work: Callable[[], object]) -> float:
        """The slowest rank's seconds."""
        import torch
        import torch.distributed as dist

        dist.barrier()
        started = time.perf_counter()
        work()
        seconds = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return float(seconds)

    def serial(self, folder: Path) -> None:
        """(a)."""
        from safetensors.torch import save_file

        tensors: dict[str, Any] = {}
        for name, parameter in self.chunks[0].named_parameters():
            shards = self._gathered(parameter)
            if self.rank == 0:
                tensors |= self._converted(name, shards)
        if self.rank == 0:
            folder.mkdir()
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            self.config.save_pretrained(folder)
        self.wait()

    def wait(self) -> None:
        import torch.distributed as dist

        dist.barrier()

    def _gathered(self, parameter: Any) -> list[Any]:
        import torch
        import torch.distributed as dist

        if not getattr(parameter, "tensor_model_parallel", False):
            return [parameter.detach()]
        shards = [torch.empty_like(parameter.data) for _ in range(RANKS)] if self.rank == 0 else None
        dist.gather(parameter.detach().contiguous(), shards, dst=0)
        return shards or []

    def _converted(self, name: str, shards: list[Any]) -> dict[str, Any]:
        """By the same blocks as ours, in memory."""
        import torch

        source = self.exporter.source
        parts: dict[Part, Shape] = {(number, len(shards)): tuple(shard.shape) for number, shard in enumerate(shards)}
        found: dict[str, Any] = {}
        for target in source.layout(name, parts):
            tensor = torch.empty(target.shape)
            flat = tensor.view(-1)
            for block in target.blocks:
                run = shards[block.part[0]].reshape(-1)[block.start : block.start + block.rows * block.width]
                to = torch.as_strided(flat, (block.rows, block.width), (block.stride, 1), block.offset)
                to.copy_(run.view(block.rows, block.width))
            found[target.name] = tensor
        return found

    def one_file(self, folder: Path) -> None:
        """(d)."""
        from trainer_integration.sharded.files import write_all
        from trainer_integration.sharded.host import as_bytes

        folder.mkdir(exist_ok=True)
        descriptor, offset = os.open(folder / f"{self.rank}", os.O_CREAT | os.O_WRONLY), 0
        for parameter in self.chunks[0].parameters():
            data = as_bytes(parameter.detach().reshape(-1))
            write_all(descriptor, data, offset)
            offset += len(data)
        os.close(descriptor)

    def copy(self, _: Path) -> None:
        """(c)."""
        for mine, parameter in zip(self.warm, self.chunks[0].parameters(), strict=True):
            mine.copy_(parameter.detach())

    def fresh_copy(self, _: Path) -> None:
        """(c) into new memory."""
        self.clones = [parameter.detach().clone() for parameter in self.chunks[0].parameters()]

    def stall(self, scheme: Callable[[Path], None], place: Path) -> float:
        folder = place / "model"
        seconds = self.timed(lambda: scheme(folder))
        self._cleared(folder)
        return seconds

    def _cleared(self, folder: Path) -> None:
        self.clones = []
        self.wait()
        if self.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            os.sync()  # so that what one scheme left to the kernel is not paid for by the next
            time.sleep(SETTLE_S)
        self.wait()

    def loop_cost(self, scheme: Callable[[Path], None], place: Path, sends: bool) -> float:
        """Seconds that an export costs the loop: until the snapshot is stored, less what the steps meanwhile take alone."""
        folder = place / "model"
        alone = [self._a_step(QUIET_STEPS)]
        steps, seconds = self._until_stored(scheme, folder, sends)
        alone.append(self._a_step(QUIET_STEPS))
        self._cleared(folder)
        return seconds - steps * statistics.mean(alone)

    def _a_step(self, count: int) -> float:
        return self.timed(lambda: [self.step() for _ in range(count)]) / count  # type: ignore[func-returns-value]

    def _until_stored(self, scheme: Callable[[Path], None], folder: Path, sends: bool) -> tuple[int, float]:
        """How many steps were made meanwhile, and seconds in all."""
        import torch
        import torch.distributed as dist

        self.wait()
        started, steps, going = time.perf_counter(), 0, torch.ones(1)
        scheme(folder)
        sender = self._sender(folder) if sends and self.rank == 0 else None
        while going.item():
            self.step()
            steps += 1
            going = torch.tensor([float(sender is not None and sender.poll() is None)])
            dist.broadcast(going, 0)
        return steps, time.perf_counter() - started

    def _sender(self, folder: Path) -> subprocess.Popen[bytes]:
        """What comes after the stall, in a process of its own: every byte is hashed and sent to a store on disk."""
        command = [sys.executable, "-m", "benchmarks.trainer_stall", "--send", str(folder), str(self.disk / "store")]
        return subprocess.Popen(["nice", "-n", "19", *command])


def measure(rank: int, memory: str, disk: str, megabytes: int, rounds: int) -> dict[str, float]:
    side = Rank(rank, Path(memory), Path(disk), megabytes)
    schemes: dict[str, tuple[Callable[[Path], None], Path]] = {"serial": (side.serial, side.disk)}
    in_memory: dict[str, Callable[[Path], None]] = {"fresh": side.exporter, "ours": side.reusing, "copy": side.copy}
    in_memory |= {"fresh_copy": side.fresh_copy, "one_file": side.one_file}
    schemes |= {name: (scheme, side.memory) for name, scheme in in_memory.items()}
    seconds: dict[str, list[float]] = {name: [] for name in schemes}
    for round_ in range(rounds + WARM_UP_ROUNDS):
        for name, (scheme, place) in list(schemes.items())[:: 1 if round_ % 2 else -1]:
            taken = side.stall(scheme, place)
            if round_ >= WARM_UP_ROUNDS:
                seconds[name].append(taken)
    costs = {name: side.loop_cost(*schemes[name], sends=name == "ours") for name in ("serial", "ours")}
    found = {f"{name}_s": round(statistics.median(taken), 4) for name, taken in seconds.items()}
    found |= {ratio: round(_ratio(seconds[one], seconds[other]), 4) for ratio, (one, other) in RATIOS.items()}
    return {"n_bytes": side.n_bytes, **found, **{f"{name}_loop_cost_s": round(cost, 3) for name, cost in costs.items()}}


def _ratio(ours: list[float], others: list[float]) -> float:
    """The median of the rounds' ratios: both sides of one had the same neighbours on the machine."""
    return statistics.median(one / other for one, other in zip(ours, others, strict=True))


def send(folder: Path, store: Path) -> None:
    import asyncio

    from infra import export

    shutil.rmtree(store, ignore_errors=True)
    files = read_contents(LocalFolder(folder)).files
    asyncio.run(export.send(Store(store.as_uri()), folder, files, "snapshots/benchmark/0"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--send", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        send(*arguments.send)
        return
    staging, load = "/dev/shm" if Path("/dev/shm").is_dir() else None, round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(dir=staging) as memory, tempfile.TemporaryDirectory() as disk:
        found: dict[str, Any] = on_ranks(RANKS, measure, memory, disk, arguments.megabytes, arguments.rounds, timeout_s=1200)[0]
        states = on_step_ms(Path(disk) / "on_step")
    found["loop_cost_vs_rank0_serial"] = round(found["ours_loop_cost_s"] / found["serial_loop_cost_s"], 3)
    found |= {"on_step_ms_median": max(states.values()), "load_average_before": load}
    found["on_step_ms"] = states
    table = "\n".join(f"{name:28} {value}" for name, value in found.items())
    print(json.dumps(found) if arguments.json else table)


if __name__ == "__main__":
    main()

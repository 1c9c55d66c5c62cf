"""What goes wrong on one rank of two, and what each rank then sees, has left behind, and can still do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from infra.errors import PinpointError
from tests.megatron.cases import SHARD_BYTES, Case, WithAdapter, built, files_for, hf_config
from tests.services.limits import files_of_at_most
from tests.services.own_mounts import mount_own
from tests.services.ranks import listing
from trainer_integration.megatron.exporter import MegatronExporter
from trainer_integration.megatron.mapping import Parameter, known_families, register_family
from trainer_integration.sharded.blocks import Target
from trainer_integration.sharded.ranks import Ranks

CASE = Case(tp=2)
UNLUCKY = 1


def raising(parameter: Parameter) -> Sequence[Target]:
    raise ArithmeticError(f"no way to convert {parameter.name}")


class Failing:
    """One after the other, so that each also shows that the export before has left the ranks in step."""

    def __init__(self, rank: int, root: Path) -> None:
        self.rank, self.root, self.unlucky = rank, root, rank == UNLUCKY
        self.found: dict[str, dict[str, Any]] = {}

    def attempt(self, name: str, exporter: MegatronExporter, context: ExitStack | None = None) -> None:
        folder = self.root / name
        dist.barrier()
        started = time.perf_counter()
        with context or ExitStack():
            outcome = _outcome(exporter, folder)
        seconds = time.perf_counter() - started
        steps = torch.ones(1)
        dist.all_reduce(steps)  # training goes on
        self.found[name] = {"outcome": outcome, "seconds": seconds, "left": listing(folder), "ranks": int(steps)}

    def all(self) -> dict[str, dict[str, Any]]:
        chunks = built(CASE)
        exporter = self._exporter(chunks)
        self.attempt("nothing", exporter)
        limited = ExitStack()
        if self.unlucky:
            limited.enter_context(files_of_at_most(50_000))
        self.attempt("no room on one rank", exporter, limited)
        self.attempt("nothing, again", exporter)
        self._in_planning(chunks)
        self._in_copying(chunks)
        return self.found

    def _in_planning(self, chunks: list[Any]) -> None:
        mlp = chunks[0].decoder.layers[3].mlp
        if self.unlucky:
            mlp.mystery = torch.nn.Parameter(torch.zeros(3))
        self.attempt("a name that nobody knows", self._exporter(chunks))
        if self.unlucky:
            del mlp.mystery
            register_family("qwen3", {**known_families()["qwen3"], "mlp.linear_fc2.weight": raising})
        self.attempt("a conversion that raises", self._exporter(chunks))
        register_family(
            "qwen3", {**known_families()["qwen3"], "mlp.linear_fc2.weight": known_families()["llama"]["mlp.linear_fc2.weight"]}
        )

    def _in_copying(self, chunks: list[Any]) -> None:
        def merge(name: str, weight: Any) -> Any:
            if self.unlucky and broken:
                raise FloatingPointError(f"{name} does not merge")
            return weight

        attention = chunks[0].decoder.layers[2].self_attention
        attention.linear_proj = WithAdapter(attention.linear_proj)
        for name, node in (("a merge that raises", "one"), ("a merge that raises before it is sent", f"node {self.rank}")):
            exporter = self._exporter(chunks, merge=merge, ranks=Ranks.of_job(node=node))
            exporter.prepare()
            broken = True
            self.attempt(name, exporter)
            broken = False
            self.attempt(f"nothing, after {name}", exporter)

    def _exporter(self, chunks: list[Any], **options: Any) -> MegatronExporter:
        return MegatronExporter(chunks, files_for(hf_config(CASE)), shard_bytes=SHARD_BYTES, **options)


def _outcome(exporter: MegatronExporter, folder: Path) -> tuple[str, str]:
    try:
        exporter(folder)
    except PinpointError as error:
        return type(error).__name__, str(error)
    return "exported", ""


def failing(rank: int, root: str) -> dict[str, dict[str, Any]]:
    return Failing(rank, Path(root)).all()


def on_own_node(rank: int, root: str, size: str) -> dict[str, Any]:
    """Rank 1 is on another node, whose staging area has `size`."""
    parent = Path(root) / "staging"
    if rank == UNLUCKY:
        mount_own(parent, size)
    case = Case(pp=2)
    exporter = MegatronExporter(
        built(case), files_for(hf_config(case)), shard_bytes=SHARD_BYTES, ranks=Ranks.of_job(node=f"node {rank}")
    )
    exporter.prepare()
    dist.barrier()
    folder = parent / "run" / "model"
    if rank == 0:
        folder.mkdir(parents=True)
        (folder.parent / "ttl").write_text("60")
    started = time.perf_counter()
    outcome = _outcome(exporter, folder)
    seconds = time.perf_counter() - started
    files = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}
    ttl = folder.parent / "ttl"
    noted = ttl.read_text() if ttl.exists() else ""
    return {"outcome": outcome, "seconds": seconds, "files": files, "ttl": noted, "parts": exporter.parts}

"""What goes wrong on one rank where an export has no plain error to exchange: beside the copy, and in what is sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from infra.errors import PinpointError
from tests.services.ranks import listing
from tests.sharded.models import files_of, model_of
from trainer_integration.sharded.exporter import StagedExporter
from trainer_integration.sharded.modules import ModuleSource
from trainer_integration.sharded.plan import Key
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.sharded.source import Held

SENT, OWN = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"
FEW = 8  # rows
Spoil = Callable[[Any], Any]


class Halved(ModuleSource):
    """All of a model on each rank, but of the embedding rank 1 has the smaller part; on a node of its own, it sends that."""

    spoiled: tuple[str, Spoil] = "", lambda tensor: tensor

    def __init__(self, rank: int, module: Any) -> None:
        super().__init__(module, "float32")
        self.rank = rank

    def _held(self) -> dict[Key, Held]:
        return {key: held for name, tensor in self.tensors().items() for key, held in self._part(name, tensor.detach())}

    def _part(self, name: str, tensor: Any) -> list[tuple[Key, Held]]:
        rows, first, whole = len(tensor), 0, tuple(tensor.shape)
        if name == SENT:
            first, rows = (0, rows - FEW) if self.rank == 0 else (rows - FEW, FEW)
        key, part = (name, (first, *(0,) * (tensor.dim() - 1), *whole)), tensor[first : first + rows]
        which, spoil = self.spoiled
        return [(key, Held(tuple(part.shape), part.dtype, lambda: spoil(part) if name == which else part))]


def no_second_buffer() -> AbstractContextManager[Any]:
    """Of equal size, as an accelerator whose memory is full."""
    empty, seen = torch.empty, set[Any]()

    def limited(*size: Any, **options: Any) -> Any:
        if options.get("dtype") is torch.uint8 and size in seen and isinstance(size[0], int) and size[0] > 1000:
            raise MemoryError("no room to receive")
        seen.add(size)
        return empty(*size, **options)

    return mock.patch("torch.empty", limited)


class Failing:
    def __init__(self, rank: int, root: Path) -> None:
        self.rank, self.root, self.found = rank, root, dict[str, Any]()
        model = model_of("Qwen3")
        self.source = Halved(rank, model)
        self.files = files_of(model)
        self.exporter = self._exporter()

    def _exporter(self) -> StagedExporter:
        return StagedExporter(self.source, self.files, dtype="float32", ranks=Ranks.of_job(node=f"node {self.rank}"))

    def attempt(self, name: str, exporter: StagedExporter, context: AbstractContextManager[Any] | None = None) -> None:
        folder = self.root / name / f"node {self.rank}"
        exporter.prepare()
        dist.barrier()
        started, outcome = time.perf_counter(), ("exported", "")
        with context or nullcontext():
            try:
                exporter(folder)
            except PinpointError as error:
                outcome = type(error).__name__, str(error)
        seconds, steps = time.perf_counter() - started, torch.ones(1)
        dist.all_reduce(steps)  # training goes on
        self.found[name] = {"outcome": outcome, "seconds": seconds, "left": listing(folder), "ranks": int(steps)}

    def spoil(self, name: str, rank: int, which: str, spoil: Spoil) -> None:
        if self.rank == rank:
            self.source.spoiled = which, spoil
        self.attempt(name, self.exporter)
        self.source.spoiled = Halved.spoiled

    def all(self) -> dict[str, Any]:
        self.attempt("nothing", self.exporter)
        (self.root / "file").write_text("")
        place = self.root / ("file" if self.rank == 1 else "fine") / "spare"
        self.attempt("spare memory that can't be made", self._exporter().reuse_memory(place))
        occupied = self.root / "a last name that is taken" / "node 0" / "config.json"
        occupied.mkdir(parents=True, exist_ok=True)
        self.attempt("a last name that is taken", self.exporter)
        self.spoil("a part that is too short", 1, SENT, lambda part: part[:-1])
        self.spoil("a part that can't be moved", 1, SENT, lambda part: part.to("meta"))
        self.spoil("a weight that is transposed", 0, OWN, lambda part: part.T)
        self.attempt("no room for what comes", self.exporter, no_second_buffer() if self.rank == 0 else None)
        self.attempt("nothing, again", self.exporter)
        return self.found


def failing(rank: int, root: str) -> dict[str, Any]:
    return Failing(rank, Path(root)).all()

"""A staged folder is whole on every node, or nothing of it is left and every rank has raised the same error.

Room is looked for first, then all ranks fill the files side by side. `config.json`, or an adapter's own, gets its name last of
all: a folder without it was never finished.
"""

from __future__ import annotations

import errno
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import ShapeMismatch, TensorMissing, TensorUnexpected
from infra.staging import TTL, free_staged
from infra.validation.layout import CONFIG
from trainer_integration.sharded.files import free_bytes, write_all
from trainer_integration.sharded.host import host_bytes, torch_dtypes
from trainer_integration.sharded.plan import Key, Piece, Plan, Transfer, Write
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.sharded.sinks import Descriptor, Sink
from trainer_integration.sharded.source import Source
from trainer_integration.sharded.spare import Spare
from trainer_integration.sharded.transfer import bytes_to_send, received_values, room_for, run_transfers, spare_chunk

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
UNFINISHED = ".unfinished"
MARGIN_BYTES = 2**20  # directories, and the pages that small files are rounded up to


class Staging:
    """One export, as one rank does it. `ttl` is the note that `infra.staging` left beside the folder, if it did.

    `config` is the file of `metadata` that gets its name last.
    """

    def __init__(
        self,
        ranks: Ranks,
        plan: Plan,
        source: Source,
        folder: Path,
        *,
        metadata: Mapping[str, bytes],
        config: str = CONFIG,
        ttl: str = "",
        spare: Spare | None = None,
    ) -> None:
        self.ranks, self.plan, self.source, self.folder = ranks, plan, source, folder
        self.metadata, self.config, self.ttl, self.spare = metadata, config, ttl, spare
        self.files = plan.files_on(ranks.node)
        self.neighbours = plan.ranks_on(ranks.node)
        self.mine = plan.writes[ranks.rank]
        self.made: list[Path] = []
        self.made_folder = False
        self.sinks: dict[int, Sink] = {}
        self.chunk: torch.Tensor | None = None
        self.failed: Exception | None = None

    def open(self) -> None:
        """What can be known to go wrong is known after this, before a byte is copied."""
        if {piece.key: piece for piece in self.source.pieces()} != self.plan.pieces[self.ranks.rank]:
            message = "the model has other parameters than when its export was planned: call the exporter's prepare() again"
            raise ShapeMismatch(message, subject="model")
        self.chunk = spare_chunk(self.ranks, self.plan)
        if self.ranks.rank == self.neighbours[0] and (self.files or self.metadata):  # who stages nothing has nothing to free
            self._make_folder()
            free = self.spare.free_names if self.spare is not None else set[str]()
            self._refuse_full(free)
            for file in self.files:
                self._create(file.name, file.header, file.n_bytes, self.spare)

    def copy(self) -> None:
        """Goes on to its end after a failure, without writing: others may wait for what this rank sends."""
        with ExitStack() as closing:
            self._attempt(partial(self._open_files, closing))
            self._attempt(self._write_metadata)
            run_transfers(self.ranks, self.plan, self.chunk, give=self._give, room=self._room, take=self._take)
            self._copy_own()
        if self.failed is not None:
            raise self.failed

    def finish(self) -> None:
        if self.spare is not None:
            self.spare.keep(self.folder, [file.name for file in self.files])
        if self.ranks.rank == 0:
            (self.folder / (self.config + UNFINISHED)).rename(self.folder / self.config)

    def remove(self) -> None:
        for path in self.made:
            with suppress(OSError):  # whoever raises here never meets the others again
                path.unlink()
        if self.made_folder:
            free_staged(self.folder)
        if self.spare is not None:
            self.spare.forget()

    def _make_folder(self) -> None:
        self.made_folder = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.made_folder and self.ttl:
            (self.folder.parent / TTL).write_text(self.ttl)

    def _refuse_full(self, there: Container[str]) -> None:
        need = sum(file.n_bytes for file in self.files if file.name not in there) + sum(map(len, self.metadata.values()))
        free = free_bytes(self.folder)
        if free < need + MARGIN_BYTES:
            place = f"{self.folder} on {self.ranks.node}"
            raise OSError(errno.ENOSPC, f"{place} has {free} bytes free and the model needs {need + MARGIN_BYTES}")

    def _create(self, name: str, content: bytes, n_bytes: int, spare: Spare | None = None) -> None:
        """A new file that begins with `content`, the rest of it a hole, or one of `spare` to be filled again."""
        path = self.folder / name
        again = spare is not None and spare.named(name, path)
        descriptor = os.open(path, os.O_RDWR | (0 if again else os.O_CREAT | os.O_EXCL), 0o644)
        self.made.append(path)
        try:
            write_all(descriptor, memoryview(content), 0)
            os.ftruncate(descriptor, n_bytes)
            if spare is not None and not again:
                spare.made(name, descriptor)
        finally:
            os.close(descriptor)

    def _open_files(self, closing: ExitStack) -> None:
        for number in {write.file for writes in self.mine.values() for write in writes}:
            path = self.folder / self.plan.files[number].name
            if self.spare is not None:
                self.sinks[number] = self.spare.sink(path.name, path, closing)
                continue
            descriptor = os.open(path, os.O_RDWR)
            closing.callback(os.close, descriptor)
            self.sinks[number] = Descriptor(descriptor)

    def _write_metadata(self) -> None:
        for name, content in self.metadata.items():  # rank 0 has it, nobody else
            self._create(name + UNFINISHED if name == self.config else name, content, len(content))
        if self.config in self.metadata:
            self.made.append(self.folder / self.config)

    def _copy_own(self) -> None:
        own = [key for key in self.mine if key in self.plan.pieces[self.ranks.rank]]
        waiting = set(own)
        try:
            for key, values in self.source.values(self._in_turn(own)):
                self._attempt(partial(self._write_own, key, values, waiting))
        except Exception as error:
            logger.debug("pinpoint: the source of the weights failed", exc_info=True)
            self.failed = self.failed or error
        if waiting and self.failed is None:
            self.failed = _never_came(min(waiting)[0])

    def _in_turn(self, own: list[Key]) -> list[Key]:
        """From file to file, each rank of a node beginning elsewhere: two that write to one file wait for each other."""
        ordered = sorted(own, key=lambda key: (self.mine[key][0].file, self.mine[key][0].begin))
        pieces = self.plan.pieces[self.ranks.rank]
        reached = list(accumulate(pieces[key].n_bytes for key in ordered))
        place, count = self.neighbours.index(self.ranks.rank), len(self.neighbours)
        start = bisect_left(reached, reached[-1] * place / count) if reached else 0
        return ordered[start:] + ordered[:start]

    def _write_own(self, key: Key, values: torch.Tensor, waiting: set[Key]) -> None:
        piece = self.plan.pieces[self.ranks.rank].get(key)
        if piece is None:
            raise TensorUnexpected(f"{key[0]} came, which was not planned: what exports the model made it up", subject=key[0])
        if key in waiting:
            self._write(piece, values)
            waiting.discard(key)

    def _write(self, piece: Piece, values: torch.Tensor) -> None:
        _refuse_other_shape(piece, values)
        flat, dtype = values.detach().reshape(-1), torch_dtypes()[piece.dtype]
        for write in self.mine[piece.key]:
            self._write_block(flat, dtype, write)

    def _write_block(self, flat: torch.Tensor, dtype: torch.dtype, write: Write) -> None:
        block, size, together = write.block, dtype.itemsize, write.block.width == write.block.stride
        values = flat[block.start : block.start + block.rows * block.width]
        offset = write.begin + block.offset * size
        for data in host_bytes(values, dtype, 1 if together else block.width):
            self.sinks[write.file].write_rows(data, offset, block.width * size, block.stride * size)
            offset += len(data) if together else len(data) // block.width * block.stride

    def _give(self, transfer: Transfer) -> torch.Tensor | None:
        found: list[torch.Tensor] = []
        self._attempt(lambda: found.append(self._to_send(transfer.piece)))
        return found[0] if found else None

    def _to_send(self, piece: Piece) -> torch.Tensor:
        found = [values for key, values in self.source.values([piece.key]) if key == piece.key]
        if not found:
            raise _never_came(piece.name)
        _refuse_other_shape(piece, found[0])
        return bytes_to_send(self.ranks, piece, found[0])

    def _room(self, transfer: Transfer) -> torch.Tensor | None:
        found: list[torch.Tensor] = []
        self._attempt(lambda: found.append(room_for(self.ranks, transfer.piece)))
        return found[0] if found else None

    def _take(self, transfer: Transfer, received: torch.Tensor) -> None:
        self._attempt(lambda: self._write(transfer.piece, received_values(transfer.piece, received)))

    def _attempt(self, work: Callable[[], object]) -> None:
        if self.failed is None:
            try:
                work()
            except Exception as error:
                logger.debug("pinpoint: rank %d could not stage its part", self.ranks.rank, exc_info=True)
                self.failed = error


def _refuse_other_shape(piece: Piece, values: torch.Tensor) -> None:
    """As many elements are not enough: a transposed weight has them, too."""
    if tuple(values.shape) != piece.shape:
        message = f"{piece.name} has shape {list(values.shape)}, {list(piece.shape)} was planned"
        raise ShapeMismatch(message, subject=piece.name)


def _never_came(name: str) -> TensorMissing:
    return TensorMissing(f"{name} was promised and never came: what exports the model left it out", subject=name)

"""A part that the node of its tensor lacks is sent there, one at a time; a rank that has failed keeps taking part.

All ranks go through the transfers in the same order, so they can't wait for each other in a circle. What may fail is done
before a rank joins one: without anything to send, or room to receive, it goes through with a chunk that it had beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer_integration.sharded.host import CHUNK_BYTES, torch_dtypes
from trainer_integration.sharded.plan import Piece, Plan, Transfer
from trainer_integration.sharded.ranks import Ranks

if TYPE_CHECKING:
    import torch

Make = Callable[[Transfer], "torch.Tensor | None"]
Take = Callable[[Transfer, "torch.Tensor"], None]


def run_transfers(ranks: Ranks, plan: Plan, chunk: torch.Tensor | None, *, give: Make, room: Make, take: Take) -> None:
    """`give` makes the bytes that this rank sends, `room` where they are received, or None if they can't.

    None of the three may raise. `chunk` is `spare_chunk`'s.
    """
    import torch.distributed as dist

    for transfer in plan.transfers:
        if transfer.sender == ranks.rank:
            for part in _chunks(give(transfer), chunk, transfer.piece.n_bytes):
                dist.send(part, transfer.receiver, group=ranks.group)
        elif transfer.receiver == ranks.rank:
            received = room(transfer)
            for part in _chunks(received, chunk, transfer.piece.n_bytes):
                dist.recv(part, transfer.sender, group=ranks.group)
            if received is not None:
                take(transfer, received)


def spare_chunk(ranks: Ranks, plan: Plan) -> torch.Tensor | None:
    """What a rank that failed sends or receives instead; None for one that has no part in any transfer."""
    sizes = [one.piece.n_bytes for one in plan.transfers if ranks.rank in (one.sender, one.receiver)]
    return _empty(ranks, min(max(sizes), CHUNK_BYTES)) if sizes else None


def bytes_to_send(ranks: Ranks, piece: Piece, values: torch.Tensor) -> torch.Tensor:
    """As bytes: gloo does not know every dtype."""
    import torch

    found = values.detach().to(_device(ranks), torch_dtypes()[piece.dtype])
    return found.reshape(-1).contiguous().view(torch.uint8)


def room_for(ranks: Ranks, piece: Piece) -> torch.Tensor:
    return _empty(ranks, piece.n_bytes)


def received_values(piece: Piece, received: torch.Tensor) -> torch.Tensor:
    return received.view(torch_dtypes()[piece.dtype]).reshape(piece.shape)


def _chunks(data: torch.Tensor | None, chunk: torch.Tensor | None, n_bytes: int) -> list[torch.Tensor]:
    """The same number and sizes on both sides, whichever of them has failed."""
    starts = range(0, n_bytes, CHUNK_BYTES)
    if data is not None:
        return [data[start : start + CHUNK_BYTES] for start in starts]
    return [] if chunk is None else [chunk[: min(n_bytes - start, CHUNK_BYTES)] for start in starts]


def _empty(ranks: Ranks, n_bytes: int) -> torch.Tensor:
    import torch

    return torch.empty(n_bytes, dtype=torch.uint8, device=_device(ranks))


def _device(ranks: Ranks) -> str:
    import torch.distributed as dist

    return "cuda" if "nccl" in str(dist.get_backend(ranks.group)) else "cpu"

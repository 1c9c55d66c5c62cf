"""A part that the node of its tensor lacks is sent there, one at a time; a rank that has failed keeps taking part.

All ranks go through the transfers in the same order, so they can't wait for each other in a circle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer_integration.sharded.host import torch_dtypes
from trainer_integration.sharded.plan import Plan, Transfer
from trainer_integration.sharded.ranks import Ranks

if TYPE_CHECKING:
    import torch

Take = Callable[[Transfer, "torch.Tensor"], None]
Give = Callable[[Transfer], "torch.Tensor | None"]


def run_transfers(ranks: Ranks, plan: Plan, give: Give, take: Take) -> None:
    """`give` makes what this rank sends, or None if it can't; `take` gets what it receives, flat. Neither may raise."""
    for transfer in plan.transfers:
        if transfer.sender == ranks.rank:
            _send(ranks, transfer, give(transfer))
        elif transfer.receiver == ranks.rank:
            take(transfer, _receive(ranks, transfer))


def _send(ranks: Ranks, transfer: Transfer, values: torch.Tensor | None) -> None:
    import torch
    import torch.distributed as dist

    found = _empty(ranks, transfer) if values is None else values.to(_device(ranks), torch_dtypes()[transfer.piece.dtype])
    dist.send(found.reshape(-1).contiguous().view(torch.uint8), transfer.receiver, group=ranks.group)


def _receive(ranks: Ranks, transfer: Transfer) -> torch.Tensor:
    import torch
    import torch.distributed as dist

    values = _empty(ranks, transfer)
    dist.recv(values.view(torch.uint8), transfer.sender, group=ranks.group)  # as bytes: gloo does not know every dtype
    return values


def _empty(ranks: Ranks, transfer: Transfer) -> torch.Tensor:
    import torch

    dtype = torch_dtypes()[transfer.piece.dtype]
    return torch.zeros(math.prod(transfer.piece.shape), dtype=dtype, device=_device(ranks))


def _device(ranks: Ranks) -> str:
    import torch.distributed as dist

    return "cuda" if "nccl" in str(dist.get_backend(ranks.group)) else "cpu"

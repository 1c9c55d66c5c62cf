"""A process that exports a snapshot, holds it, and retires it, and is killed at its N-th store operation.

`python -m tests.services.dying_exporter STORE_URL CHECKPOINT N`; N counts each block of an upload too. Exit code 0 says that it
came to its end, so N was larger than all it does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from infra import leases, store
from infra.export import complete, send
from infra.model import EvalPoint
from infra.snapshot import assemble, new_prefix, validate
from infra.transfer import Transfer

POINT = EvalPoint(run="killed", step=1)
TTL_S = 2.0
COUNTED = ("read", "write", "create", "list", "written", "exists", "delete", "upload", "abort_uploads")


class Countdown:
    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Dying(store.Store):
    """Each operation is a step."""

    countdown: Countdown

    def __getattribute__(self, name: str) -> Any:
        if name in COUNTED:
            super().__getattribute__("countdown").step()
        return super().__getattribute__(name)


async def main(url: str, checkpoint: Path, left: int) -> None:
    countdown, moved = Countdown(left), Transfer.moved

    def dying(transfer: Transfer, n_bytes: int) -> None:
        """Each block that the store has taken is a step: the kill comes in the middle of a file."""
        moved(transfer, n_bytes)
        countdown.step()

    Transfer.moved = dying  # type: ignore[method-assign]
    opened = Dying(url)
    opened.countdown = countdown
    prefix = new_prefix(POINT)
    leases.acquire(opened, prefix, owner=leases.owner_of(POINT), purpose="export", ttl_s=TTL_S)
    sent = await send(opened, checkpoint, validate(checkpoint), prefix)
    await complete(opened, prefix, assemble(sent.files, sent.tensors, POINT))
    leases.delete_owned(opened, POINT)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))

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
from infra.export import describe_folder, send
from infra.model import EvalPoint
from infra.snapshot import new_prefix

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


class Blocks:
    """A writer each of whose blocks is a step: the kill comes in the middle of a file."""

    def __init__(self, writer: Any, countdown: Countdown) -> None:
        self.writer, self.countdown = writer, countdown

    def write(self, block: bytes) -> None:
        self.writer.write(block)
        self.countdown.step()


async def main(url: str, checkpoint: Path, left: int) -> None:
    countdown, copy = Countdown(left), store.copy_blocks
    store.copy_blocks = lambda reader, writer, stopping: copy(reader, Blocks(writer, countdown), stopping)  # type: ignore[arg-type]
    opened = Dying(url)
    opened.countdown = countdown
    prefix = new_prefix(POINT)
    leases.acquire(opened, prefix, owner=leases.owner_of(POINT), purpose="export", ttl_s=TTL_S)
    await send(opened, checkpoint, await describe_folder(checkpoint, POINT), prefix)
    leases.delete_owned(opened, POINT)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))

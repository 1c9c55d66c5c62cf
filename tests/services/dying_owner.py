"""A process that stages, exports, reads, reports and retires a point, or sweeps, and is killed at its N-th step.

Steps are store operations, blocks that a store has taken, and files that were staged. Exit code 0 says that it came to its
end, so N was larger than all it does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infra import leases, store
from infra.export import complete, send
from infra.model import SkippedPoint
from infra.reclaim import sweep
from infra.records import commit
from infra.retention import retire_snapshots
from infra.snapshot import assemble, new_prefix, validate
from infra.staging import free_staged, new_staged
from infra.transfer import Transfer
from tests.infra.examples import POINT

TTL_S = 10.0  # longer than its steps take on a busy machine
COUNTED = ("read", "write", "create", "list", "written", "exists", "delete", "upload", "abort_uploads")
RECORD = SkippedPoint(
    point=POINT, suite="suite", reason="busy", message="m", export_time_seconds=0.0, finished_at="2026-01-01T00:00:00+00:00"
)


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


def staged(staging: Path, checkpoint: Path, countdown: Countdown) -> Path:
    folder = new_staged(staging, POINT, TTL_S)
    countdown.step()
    for file in sorted(checkpoint.iterdir()):
        shutil.copyfile(file, folder / file.name)
        countdown.step()
    return folder


async def own(opened: Dying, staging: Path, checkpoint: Path) -> None:
    folder, prefix, owner = staged(staging, checkpoint, opened.countdown), new_prefix(POINT), leases.owner_of(POINT)
    holder = leases.acquire(opened, prefix, owner=owner, purpose="export", ttl_s=TTL_S)
    with leases.kept_alive(store.Store(opened.url), prefix, holder):  # whose writes are no steps
        sent = await send(opened, folder, validate(folder), prefix)
        await complete(opened, prefix, assemble(sent.files, sent.tensors, POINT), owner)
        reader = leases.acquire(opened, prefix, owner=owner, purpose="read", ttl_s=TTL_S)
        commit(opened, RECORD)
        leases.release(opened, prefix, reader)
    free_staged(folder)
    retire_snapshots(opened, POINT, 0)


def count_blocks(step: Callable[[], None]) -> None:
    """Each block that a store has taken is a step: the kill comes in the middle of a file."""
    moved = Transfer.moved

    def dying(transfer: Transfer, n_bytes: int) -> None:
        moved(transfer, n_bytes)
        step()

    Transfer.moved = dying  # type: ignore[method-assign,assignment]


def main(environment: Mapping[str, str], act: str, url: str, staging: Path, checkpoint: Path, left: int) -> None:
    """All of a process of its own. `act` is `own` or `sweep`; `left` is N."""
    os.environ.update(environment)
    countdown = Countdown(left)
    count_blocks(countdown.step)
    opened = Dying(url)
    opened.countdown = countdown
    if act == "sweep":
        sweep(opened, staging)
    else:
        asyncio.run(own(opened, staging, checkpoint))

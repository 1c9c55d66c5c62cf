"""Real ranks: processes that form a gloo group and each run the same function, as a launcher would start them.

A function that raises gives its error as the rank's result; a rank that dies is named, and one that does not end in time is
killed, too.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.services.forks import FORKS

LEAVE_S = 60.0
GROUP_TIMEOUT = datetime.timedelta(seconds=120)


class RankFailed(Exception):
    """A rank raised what its test did not expect."""


def on_ranks(count: int, function: Callable[..., Any], *args: Any, timeout_s: float = 240.0) -> list[Any]:
    """`function(rank, *args)` on each rank, at module level so that it can be pickled; gives its results by rank."""
    with tempfile.TemporaryDirectory(prefix="pinpoint-ranks-") as folder:
        pairs = [FORKS.Pipe() for _ in range(count)]
        meeting = f"file://{folder}/meeting"
        processes = [
            FORKS.Process(target=_rank, args=(rank, count, meeting, pairs[rank][1], function, args)) for rank in range(count)
        ]
        for process in processes:
            process.start()
        for _, theirs in pairs:
            theirs.close()  # a rank's death is the end of its pipe
        try:
            deadline = time.monotonic() + timeout_s
            return [_result(rank, pairs[rank][0], deadline) for rank in range(count)]
        finally:
            for ours, _ in pairs:
                with suppress(OSError):
                    ours.send(None)  # all have answered: a rank that left earlier would cut off one in its last collective
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()


def _result(rank: int, receiver: Connection, deadline: float) -> Any:
    if not receiver.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError(f"rank {rank} did not end in time")
    try:
        ended_well, value = receiver.recv()
    except EOFError:
        raise RankFailed(f"rank {rank} died") from None
    if not ended_well:
        raise RankFailed(f"rank {rank}:\n{value}")
    return value


def _rank(rank: int, count: int, meeting: str, sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count, timeout=GROUP_TIMEOUT)
    try:
        sender.send((True, function(rank, *args)))
    except Exception:  # noqa: BLE001 (the launcher raises it)
        sender.send((False, traceback.format_exc()))
    with suppress(OSError, EOFError):
        sender.poll(LEAVE_S)
    sender.close()
    dist.destroy_process_group()


def listing(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []

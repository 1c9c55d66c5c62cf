"""A rank whose process dies is noticed by all others at once, also by those that gloo gave no connection to it."""

from __future__ import annotations

import datetime
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from infra.errors import ExportFailed
from tests.services.ranks import RankFailed, on_ranks
from trainer_integration.sharded.ranks import Ranks

pytestmark = pytest.mark.slow
DEAD = 2
TIMEOUT_S = 30.0


def dying(rank: int, root: str) -> None:
    ranks = Ranks.of_job(timeout=datetime.timedelta(seconds=TIMEOUT_S))
    ranks.together(lambda: None)
    ranks.exchange(None)
    started = time.monotonic()
    held = None
    try:
        ranks.together(lambda: os.kill(os.getpid(), signal.SIGKILL) if rank == DEAD else None)
    except RuntimeError as error:
        held = error  # as a trainer's log may
    seconds = time.monotonic() - started
    with suppress(ExportFailed):
        ranks.broadcast(None)
        seconds = TIMEOUT_S
    time.sleep(1.0)  # the others' news is not that this process ended
    (Path(root) / str(rank)).write_text(f"{seconds} {held is not None}")


def test_no_rank_waits_out_the_groups_time_for_one_that_died(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=f"rank {DEAD} died"):
        on_ranks(4, dying, str(tmp_path), timeout_s=240)
    told = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert sorted(told) == ["0", "1", "3"]
    assert max(float(seconds) for seconds, _ in told.values()) < TIMEOUT_S / 3
    assert [raised for _, raised in told.values()] == ["True"] * 3

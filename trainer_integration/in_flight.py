"""A point between its dispatch and its record, and when the trainer gives it up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from infra.model import EvalPoint, EvalRequest
from infra.staging import renew_staged
from trainer_integration.prefect_api import TERMINAL

QUEUE_GRACE_S = 60.0
BEGINS_AGAIN = "AwaitingRetry"


def last_resort_s(deadline_s: float) -> float:
    """Seconds after its dispatch at which the trainer gives a point up that has no record.

    The flow keeps `deadline_s` itself, from its own start. This is for a flow that can't: one that never started, or was
    lost. One that waits in the queue for at most `deadline_s` + 60 s ends by itself before.
    """
    return 2 * deadline_s + QUEUE_GRACE_S


@dataclass(slots=True)
class InFlight:
    """A point that was dispatched and has no record yet; `deadline` is `last_resort_s` on the monotonic clock."""

    point: EvalPoint
    suite: str
    staged: Path | None
    store_url: str
    export_time_seconds: float
    keep_snapshots: int
    deadline: float
    deadline_s: float = 0.0  # of each start of its flow
    flow_run_id: str | None = None
    ended_at: float | None = None
    state: str = ""
    again: bool = False  # its flow was killed, and begins again, which it does once

    @classmethod
    def of(cls, request: EvalRequest) -> Self:
        return cls(
            point=request.point,
            suite=request.suite.name,
            staged=Path(request.source.path) if request.source.staged else None,
            store_url=request.store_url,
            export_time_seconds=request.export_time_seconds,
            keep_snapshots=request.keep_snapshots,
            deadline=time.monotonic() + last_resort_s(request.deadline_s),
            deadline_s=request.deadline_s,
        )

    def heard(self, kind: str, state: str) -> None:
        """What Prefect says of its flow run. One that begins again has its whole time again, and so has what it exports."""
        again = (kind not in TERMINAL and self.ended_at is not None) or state == BEGINS_AGAIN
        self.state = state
        self.ended_at = (self.ended_at or time.monotonic()) if kind in TERMINAL else None
        if again and not self.again:
            self.again = True
            self.deadline += self.deadline_s
            if self.staged is not None:
                renew_staged(self.staged)

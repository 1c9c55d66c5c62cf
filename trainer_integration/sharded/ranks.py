"""What goes wrong on one rank is raised on all of them, at once: no rank waits for one that has given up.

Errors are exchanged over a gloo group of its own, so that neither a busy accelerator nor the trainer's own collectives are
in the way. A rank whose *process* dies is gloo's to notice, from the dropped connection; not all ranks have one to it, so
whoever notices leaves the group, which drops those to the others.
"""

from __future__ import annotations

import datetime
import logging
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from infra.errors import ExportFailed, StagingFailed

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(eq=False, slots=True, kw_only=True)
class Ranks:
    """The processes of a training job. `group` is the one for data, None for all; `control` that for errors.

    Ranks with the same `node` share the staging area. They are `lost` when one of them died: none waits for another again.
    """

    rank: int
    count: int
    node: str
    group: Any = None
    control: Any = None
    lost: bool = False

    @classmethod
    def of_job(cls, *, node: str | None = None, timeout: datetime.timedelta | None = None) -> Ranks:
        """All ranks of the process group, or this process alone if there is none. Collective: every rank makes it."""
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return cls.alone()
        control = dist.new_group(backend="gloo", timeout=timeout)
        name = node or socket.gethostname()
        return cls(rank=dist.get_rank(), count=dist.get_world_size(), node=name, control=control)

    @classmethod
    def alone(cls) -> Ranks:
        """This process, which has all of the model, whatever others there are."""
        return cls(rank=0, count=1, node=socket.gethostname())

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, in order of rank. Collective. Raises ExportFailed if the ranks are lost."""
        if self.count == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.count
        self._over_control(lambda: dist.all_gather_object(values, value, group=self.control))
        return values

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value on every rank; a trainer uses it to tell the others which folder to stage into. Collective."""
        return self.exchange(value if self.rank == 0 else None)[0]

    def together(self, work: Callable[[], Result]) -> Result:
        """Does `work` on every rank. Collective: if it fails on any, all raise the same StagingFailed."""
        failed: Exception | None = None
        result: Result | None = None
        try:
            result = work()
        except Exception as error:
            logger.debug("pinpoint: rank %d failed", self.rank, exc_info=True)
            failed = error
        if self._any(failed is not None):
            told = self.exchange(None if failed is None else f"{type(failed).__name__}: {failed}")
            errors = {rank: text for rank, text in enumerate(told) if text is not None}
            raise StagingFailed(_summary(errors), ranks=errors) from failed
        return result  # type: ignore[return-value]

    def _any(self, value: bool) -> bool:
        """Whether it is true on any rank: one small collective, which is all that is paid while nothing fails."""
        if self.count == 1:
            return value
        import torch
        import torch.distributed as dist

        flag = torch.tensor([int(value)], dtype=torch.int32)
        self._over_control(lambda: dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.control))
        return bool(flag.item())

    def _over_control(self, collective: Callable[[], object]) -> None:
        if self.lost:
            raise ExportFailed("a rank of the job died, or did not answer in time: the others export nothing any more")
        try:
            collective()
        except RuntimeError as error:
            traceback.clear_frames(error.__traceback__)  # they have the group, too: its connections end with the last who has
            self._leave()
            raise

    def _leave(self) -> None:
        import torch.distributed as dist

        control, self.control, self.lost = self.control, None, True
        try:
            if control is not None:
                dist.destroy_process_group(control)
        except (RuntimeError, ValueError):
            logger.debug("pinpoint: rank %d could not end its control group", self.rank, exc_info=True)


def _summary(errors: dict[int, str]) -> str:
    first = min(errors)
    others = f" (and {len(errors) - 1} more ranks)" if len(errors) > 1 else ""
    return f"the model could not be staged, rank {first}{others}: {errors[first]}"

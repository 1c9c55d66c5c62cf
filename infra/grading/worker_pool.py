"""An item that does not end in time costs its worker, and no other item anything but waiting.

At an item's deadline the worker is killed (SIGKILL: code in C, or code that ignores signals, hears nothing else); items that
were handed over with it go to the next one. Items that take microseconds are handed over many at a time, and one worker is all
that they need: another is started when one of them has waited for `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Any, Self

import anyio

from infra.errors import GraderError, GraderTimeout
from infra.grading.worker import FAILED
from infra.grading.worker_process import WorkerProcess

logger = logging.getLogger(__name__)
LOAD_DEADLINE_S = 120.0  # to start a worker and import a grader's packages, on a machine that is busy with engines
CHUNK_S = 0.02  # how much work is handed over at once, by what the last items took
CHUNK_MAX = 64
PATIENCE_S = 0.1  # about what a worker's start takes of a processor that engines need


@dataclass(slots=True, eq=False)
class _Job:
    work: bytes
    item: bytes
    outcome: asyncio.Future[Any]
    since: float = field(default_factory=monotonic)

    def fail(self, error: GraderError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def settle(self, kind: str, result: Any) -> None:
        if kind == FAILED:
            self.fail(GraderError(str(result)))
        elif not self.outcome.done():
            self.outcome.set_result(result)


class WorkerPool:
    """At most `workers` processes, started when there is work that those before do not keep up with.

    Use as an async context manager.
    """

    def __init__(self, workers: int, deadline_s: float, load_deadline_s: float = LOAD_DEADLINE_S) -> None:
        self.deadline_s, self.load_deadline_s = deadline_s, load_deadline_s
        self._workers = workers
        self._waiting: deque[_Job] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._slots: list[asyncio.Task[None]] = []
        self._item_s = CHUNK_S
        self._growing: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._growing is not None:
            self._growing.cancel()
        slots = tuple(self._slots)
        for slot in slots:
            slot.cancel()
        with anyio.CancelScope(shield=True):
            if slots:
                await asyncio.wait(slots)
        for job in self._waiting:
            job.fail(GraderError("the pool was closed"))

    async def run(self, work: bytes, item: Any) -> Any:
        """What the pickled Work makes of the item.

        Raises:
            GraderTimeout: it took longer than the deadline, and was killed.
            GraderError: it raised, its worker died, or it could not be made ready.
        """
        try:
            packed = pickle.dumps(item)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise GraderError(f"can't be handed to a worker: {error}") from None
        job = _Job(work, packed, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._wake()
        return await job.outcome

    def _wake(self) -> None:
        while self._idle:
            if not (idle := self._idle.popleft()).done():
                return idle.set_result(None)
        if not self._slots:
            self._add_slot()
        elif self._growing is None and len(self._slots) < self._workers:
            self._growing = asyncio.get_running_loop().call_later(PATIENCE_S, self._grow)
        return None

    def _grow(self) -> None:
        """Another worker, if what has waited longest has done so for long enough; looks again for as long as somebody waits."""
        self._growing = None
        if not self._waiting or len(self._slots) >= self._workers:
            return
        if (left_s := self._waiting[0].since + PATIENCE_S - monotonic()) <= 0:
            self._add_slot()
        self._growing = asyncio.get_running_loop().call_later(max(left_s, PATIENCE_S), self._grow)

    def _add_slot(self) -> None:
        slot = asyncio.create_task(self._slot(), name=f"grader-{len(self._slots)}")
        slot.add_done_callback(self._ended)
        self._slots.append(slot)

    def _ended(self, slot: asyncio.Task[None]) -> None:
        """A slot ends when it is cancelled. If a fault of ours ended it, whoever waits must not do so for ever."""
        self._slots.remove(slot)
        if not slot.cancelled() and (error := slot.exception()) is not None:
            logger.error("%s ended: %s: %s", slot.get_name(), type(error).__name__, error, exc_info=error)
            _fail(self._waiting, f"the pool failed: {type(error).__name__}: {error}")

    async def _slot(self) -> None:
        """One worker after another."""
        worker: WorkerProcess | None = None
        chunk: deque[_Job] = deque()
        try:
            while True:
                chunk = await self._next_chunk()
                try:
                    worker = worker or await WorkerProcess.start()
                except OSError as error:
                    _fail(chunk, f"no worker can be started: {error}")
                    continue
                healthy = await self._serve(worker, chunk)
                self._waiting.extendleft(reversed(chunk))
                chunk.clear()
                if not healthy:
                    await worker.end()
                    worker = None
        finally:
            _fail(chunk, "the pool was closed")
            if worker is not None:
                await worker.end()

    async def _next_chunk(self) -> deque[_Job]:
        """About as many jobs of one work as take CHUNK_S, and no more than one worker's share of what waits."""
        while not self._waiting:
            idle = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle
        share = math.ceil(len(self._waiting) / self._workers)
        size = max(1, min(share, CHUNK_MAX, int(CHUNK_S / max(self._item_s, 1e-6))))
        chunk = deque([self._waiting.popleft()])
        while self._waiting and len(chunk) < size and self._waiting[0].work is chunk[0].work:
            chunk.append(self._waiting.popleft())
        if self._waiting:
            self._wake()
        return chunk

    async def _serve(self, worker: WorkerProcess, chunk: deque[_Job]) -> bool:
        """Takes each job that has its outcome off the chunk. False: the worker is of no more use."""
        if not await self._made_ready(worker, chunk):
            return False
        while chunk:
            started = monotonic()
            try:
                async with asyncio.timeout(self.deadline_s):
                    kind, result = await worker.receive()
            except TimeoutError:
                worker.kill()
                chunk.popleft().fail(GraderTimeout(f"no grade within {self.deadline_s:g} s"))
                return False
            except (EOFError, ValueError, TypeError, pickle.UnpicklingError):
                chunk.popleft().fail(GraderError(f"the grader's process {await worker.how_it_died()}"))
                return False
            chunk.popleft().settle(kind, result)
            self._item_s += 0.2 * (monotonic() - started - self._item_s)
        return True

    async def _made_ready(self, worker: WorkerProcess, chunk: deque[_Job]) -> bool:
        """Hands the chunk over. If a new worker can't be made ready for it, none can: all of the chunk fail."""
        try:
            async with asyncio.timeout(self.load_deadline_s):
                await worker.send((chunk[0].work, [job.item for job in chunk]))
                kind, reason = await worker.receive()
            if kind != FAILED:
                worker.proven = True
                return True
        except TimeoutError:
            reason = f"the grader was not ready within {self.load_deadline_s:g} s"
        except (EOFError, ConnectionError, ValueError, TypeError, pickle.UnpicklingError):
            reason = f"the grader's process {await worker.how_it_died()} before it was ready"
            if worker.proven:  # perhaps it was killed while it had nothing to do: another will tell
                return False
        _fail(chunk, str(reason))
        return False


def _fail(jobs: deque[_Job], reason: str) -> None:
    while jobs:
        jobs.popleft().fail(GraderError(reason))

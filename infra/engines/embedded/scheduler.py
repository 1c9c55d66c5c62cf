"""One thread owns the model and every request in flight, so no forward pass ever sees a mix of two checkpoints.

Other threads only post to its inbox; it reads the inbox between two steps. A request or a swap takes a ticket when it
is read. A swap while unpaused waits for every older request and holds back the younger ones, as SGLang's lock does.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch

from infra.engines.embedded.batch import Batch
from infra.engines.embedded.decoding import Decoding
from infra.engines.embedded.live_model import LiveModel, PreparedWeights
from infra.engines.embedded.sampling import BadRequest
from infra.errors import EngineDead

PauseMode = Literal["abort", "retract", "in_place"]
T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loads:
    running: int = 0
    waiting: int = 0
    used_tokens: int = 0
    peak_running: int = 0


@dataclass(frozen=True, slots=True)
class SwapOutcome:
    success: bool
    message: str
    paused_requests: int = 0


@dataclass(slots=True, kw_only=True)
class _Swap:
    weights: PreparedWeights
    version: str | None
    flush_cache: bool
    ticket: int = -1
    future: Future[SwapOutcome] = field(default_factory=Future)


class Scheduler:
    def __init__(self, model: LiveModel, *, max_running: int, torch_threads: int) -> None:
        self.loads = Loads()
        self.crashed = False
        self._model, self._max_running, self._torch_threads = model, max_running, torch_threads
        self._inbox: queue.SimpleQueue[tuple[Callable[[], None], Future[Any]]] = queue.SimpleQueue()
        self._waiting: deque[Decoding] = deque()
        self._swaps: deque[_Swap] = deque()
        self._probes: list[Future[None]] = []
        self._batches: list[Batch] = []
        self._tickets, self.paused, self._stopping, self.closed = 0, False, False, False

    # What other threads call.

    def start(self, on_end: Callable[[], None]) -> None:
        """Begin; `on_end` is called in the model thread when it ends, also when it dies of a bug."""
        threading.Thread(target=self._run, args=(on_end,), name="model", daemon=True).start()

    def stop(self) -> None:
        """End after the step in progress; safe in a signal handler."""
        self._stopping = True
        self._inbox.put((lambda: None, Future()))

    def submit(self, decoding: Decoding) -> Future[Decoding]:
        return self._post(lambda: self._enqueue(decoding), decoding.future)

    def abort(self, is_meant: Callable[[Decoding], bool]) -> Future[int]:
        """Finish every request in flight that `is_meant`; the number of them."""
        return self._call(lambda: self._abort(is_meant))

    def swap(self, weights: PreparedWeights, version: str | None, *, flush_cache: bool, abort_all: bool) -> Future[SwapOutcome]:
        swap = _Swap(weights=weights, version=version, flush_cache=flush_cache)
        return self._post(lambda: self._enqueue_swap(swap, abort_all), swap.future)

    def pause(self, mode: PauseMode) -> Future[None]:
        return self._call(lambda: self._pause(mode))

    def resume(self) -> Future[None]:
        return self._call(lambda: setattr(self, "paused", False))

    def is_idle(self) -> Future[bool]:
        return self._call(lambda: not self._batches and not self._waiting)

    def checksums(self) -> Future[dict[str, str]]:
        return self._call(self._model.checksums)

    def probe(self) -> Future[None]:
        """Resolves once a token was generated for it, so not while paused; takes no place in the queue."""
        probe: Future[None] = Future()
        return self._post(lambda: self._probes.append(probe), probe)

    def _call(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        return self._post(lambda: future.set_result(function()), future)

    def _post(self, function: Callable[[], None], future: Future[T]) -> Future[T]:
        self._inbox.put((function, future))
        if self.closed:
            self._refuse_inbox()
        return future

    # What runs in the model thread.

    def _run(self, on_end: Callable[[], None]) -> None:
        torch.set_num_threads(self._torch_threads)
        try:
            with torch.inference_mode():
                while not self._stopping:
                    self._turn()
        finally:
            self._close()
            on_end()

    def _turn(self) -> None:
        self._read_inbox(wait=not self._has_work())
        if self._swap_is_due():
            self._apply(self._swaps.popleft())
        if not self.paused:
            self._answer_probes()
            self._admit()
            for batch in self._batches:
                batch.step(self._model)
            self._drop_finished()
        self._publish_loads()

    def _has_work(self) -> bool:
        runnable = bool(self._probes or self._batches or self._waiting)
        return self._stopping or self._swap_is_due() or (runnable and not self.paused)

    def _read_inbox(self, *, wait: bool) -> None:
        while True:
            try:
                function, future = self._inbox.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if future.set_running_or_notify_cancel():
                function()

    def _enqueue(self, decoding: Decoding) -> None:
        if any(other.rid == decoding.rid for other in self._in_flight()):
            decoding.future.set_exception(BadRequest(f"a request with rid {decoding.rid!r} is in flight already"))
            return
        decoding.ticket = self._next_ticket()
        self._waiting.append(decoding)

    def _enqueue_swap(self, swap: _Swap, abort_all: bool) -> None:
        swap.ticket = self._next_ticket()
        self._swaps.append(swap)
        if abort_all:
            self._abort(lambda decoding: True)

    def _next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _in_flight(self) -> list[Decoding]:
        return [row for batch in self._batches for row in batch.rows] + list(self._waiting)

    def _swap_is_due(self) -> bool:
        if not self._swaps:
            return False
        older = any(decoding.ticket < self._swaps[0].ticket for decoding in self._in_flight())
        return self.paused or not older

    def _apply(self, swap: _Swap) -> None:
        held = len(self._in_flight()) if self.paused else 0
        if swap.flush_cache and self._batches:
            message = (
                "flush_cache is true, but requests paused in place hold the cache (SGLang dies of this): "
                "send flush_cache=false, or pause with mode retract or abort"
            )
            swap.future.set_result(SwapOutcome(False, message, held))
            return
        self._model.swap(swap.weights, swap.version)
        served = self._model.served
        logger.info("weights swapped version=%s path=%s held=%d", served.version, served.path, held)
        swap.future.set_result(SwapOutcome(True, "Succeeded to update model weights.", held))

    def _pause(self, mode: PauseMode) -> None:
        self.paused = True
        if mode == "abort":
            self._abort(lambda decoding: True)
        elif mode == "retract":
            rows = sorted((row for batch in self._batches for row in batch.rows), key=lambda row: row.ticket)
            self._batches.clear()
            for row in rows:
                row.retractions += 1
            self._waiting.extendleft(reversed(rows))

    def _abort(self, is_meant: Callable[[Decoding], bool]) -> int:
        meant = [decoding for decoding in self._in_flight() if is_meant(decoding)]
        for decoding in meant:
            decoding.abort(self._model.served, "Aborted")
        self._waiting = deque(decoding for decoding in self._waiting if not decoding.finished)
        self._drop_finished()
        return len(meant)

    def _answer_probes(self) -> None:
        if self._probes:
            one = torch.ones((1, 1), dtype=torch.long)
            self._model.forward(one, one, one - 1, self._model.new_cache(), last_only=True).argmax(dim=-1)
        for probe in self._probes:
            probe.set_result(None)
        self._probes = []

    def _admit(self) -> None:
        barrier = self._swaps[0].ticket if self._swaps else self._tickets + 1
        room = self._max_running - sum(len(batch.rows) for batch in self._batches)
        rows: list[Decoding] = []
        while self._waiting and len(rows) < room and self._waiting[0].ticket < barrier:
            rows.append(self._waiting.popleft())
        if not rows:
            return
        batch = Batch.prefill(self._model, rows)
        running = sum(len(batch.rows) for batch in self._batches) + len(rows)
        self._publish_loads(peak=running)
        batch.drop_finished()
        if batch.rows and self._batches and batch.mergeable:
            self._batches[0].absorb(batch)
        elif batch.rows:
            self._batches.append(batch)

    def _drop_finished(self) -> None:
        for batch in self._batches:
            batch.drop_finished()
        self._batches = [batch for batch in self._batches if batch.rows]

    def _publish_loads(self, peak: int = 0) -> None:
        rows = [row for batch in self._batches for row in batch.rows]
        self.loads = Loads(
            running=len(rows),
            waiting=len(self._waiting),
            used_tokens=sum(len(row.prompt_ids) + len(row.output_ids) for row in rows),
            peak_running=max(self.loads.peak_running, len(rows), peak),
        )

    def _close(self) -> None:
        self.crashed = not self._stopping
        self.closed = True
        self._refuse_inbox()
        futures: list[Future[Any]] = [decoding.future for decoding in self._in_flight()]
        futures += [swap.future for swap in self._swaps] + self._probes
        for future in futures:
            if not future.done():
                future.set_exception(EngineDead("the model thread has ended", engine="embedded"))

    def _refuse_inbox(self) -> None:
        while True:
            try:
                _, future = self._inbox.get_nowait()
            except queue.Empty:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineDead("the model thread has ended", engine="embedded"))

"""Rollouts come from another process that nothing but its own bound holds back: no evaluation, no optimizer step.

The producer samples with its own copy of the newest published weights and may be at most `queue_size` batches ahead, which
bounds staleness. It ends on `stop`, with its parent (also one that was SIGKILLed), and when it fails its traceback is
raised in the trainer: `next_rollouts` never hangs. Enter `RolloutProducer` from a thread that outlives it: Linux ties the
child to the thread that started it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from torch import multiprocessing
from transformers import Qwen3ForCausalLM

from infra.errors import PinpointError
from trainer_integration.tiny_trainer.addition import Pair
from trainer_integration.tiny_trainer.config import RolloutConfig
from trainer_integration.tiny_trainer.producer_process import Crash, ProducerJob, produce
from trainer_integration.tiny_trainer.rollouts import Rollouts
from trainer_integration.tiny_trainer.shared_weights import SharedWeights

STOP_TIMEOUT_S = 15.0  # of which an interpreter with torch in it takes seconds on a busy machine
ROLLOUT_TIMEOUT_S = 180.0  # the first batch also waits for the imports of a fresh interpreter


class ProducerFailed(PinpointError):
    """The producer raised (`child_traceback`, also a note of this error), was killed, or made nothing in time."""

    def __init__(self, message: str, *, child_traceback: str = "") -> None:
        self.child_traceback = child_traceback
        super().__init__(f"the rollout producer {message}")
        if child_traceback:
            self.add_note(f"in the producer process:\n{child_traceback}")


class RolloutProducer:
    """A context manager around the process. It starts at once, and samples once the first weights are published."""

    def __init__(self, model: Qwen3ForCausalLM, pairs: Sequence[Pair], config: RolloutConfig, *, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._weights = SharedWeights(context, model)
        self._receiver, self._sender = context.Pipe(duplex=False)
        self._gate_receiver, self._gate_sender = context.Pipe(duplex=False)
        self._gate_url = ""
        self._slots = context.Semaphore(config.queue_size)
        self._stopping = context.Event()
        job = ProducerJob(
            model_config=model.config.to_dict(),
            pairs=tuple(pairs),
            config=config,
            seed=seed,
            weights=self._weights,
            sender=self._sender,
            gate_sender=self._gate_sender,
            slots=self._slots,
            stopping=self._stopping,
            parent=os.getpid(),
        )
        self.process = context.Process(target=produce, args=(job,), name="rollout-producer", daemon=True)

    def __enter__(self) -> RolloutProducer:
        self.process.start()
        for sender in (self._sender, self._gate_sender):
            sender.close()  # ours: so that the death of the producer reads as an end of file
        return self

    def gate_url(self) -> str:
        """Where the gate in front of the producer's batches is served, once it has started. Raises ProducerFailed."""
        if not self._gate_url:
            self._gate_url = self._received(self._gate_receiver)
        return self._gate_url

    def publish(self, model: Qwen3ForCausalLM, version: int) -> None:
        self._weights.publish(model, version)

    def next_rollouts(self) -> Rollouts:
        """The oldest finished batch; waits for one. Raises ProducerFailed."""
        message = self._received(self._receiver)
        if isinstance(message, Crash):
            raise ProducerFailed(f"raised {message.summary}", child_traceback=message.traceback)
        self._slots.release()
        return Rollouts.from_arrays(message)

    def _received(self, receiver: Connection[Any, Any]) -> Any:
        try:
            if not receiver.poll(ROLLOUT_TIMEOUT_S):
                raise ProducerFailed(f"made nothing for {ROLLOUT_TIMEOUT_S:.0f} s")
            return receiver.recv()
        except (EOFError, OSError):
            self.process.join(STOP_TIMEOUT_S)
            raise ProducerFailed(f"ended with exit code {self.process.exitcode}") from None

    def stop(self) -> None:
        """Ends the process within `STOP_TIMEOUT_S`, by force if need be. Harmless when it is gone."""
        self._stopping.set()
        self._receiver.close()
        self._gate_receiver.close()
        self.process.join(STOP_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

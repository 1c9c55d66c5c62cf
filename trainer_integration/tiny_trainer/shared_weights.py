"""The newest weights, whole: a reader never sees half of one version and half of the next.

One flat float32 tensor in shared memory with a version counter, both guarded by one lock. Publishing never waits for a
reader longer than one copy (about a millisecond).
"""

from __future__ import annotations

from multiprocessing.context import SpawnContext

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

NEVER = -1
LOCK_TIMEOUT_S = 30.0


class SharedWeights:
    """Passed to the producer when it is spawned. Holds the parameters of models of one architecture; tied ones once."""

    def __init__(self, context: SpawnContext, model: nn.Module) -> None:
        size = sum(parameter.numel() for parameter in model.parameters())
        self._flat = torch.zeros(size).share_memory_()
        self._version = torch.tensor(NEVER).share_memory_()
        self._lock = context.Lock()

    def publish(self, model: nn.Module, version: int) -> None:
        """Raises TimeoutError when a process died holding the lock."""
        weights = parameters_to_vector(model.parameters()).detach()
        self._acquire()
        try:
            self._flat.copy_(weights)
            self._version.fill_(version)
        finally:
            self._lock.release()

    def load_newer(self, model: nn.Module, than: int) -> int:
        """Gives `model` the newest weights if their version is above `than`; returns the version it then has."""
        self._acquire()
        try:
            version = int(self._version)
            if version <= than:
                return than
            weights = self._flat.clone()
        finally:
            self._lock.release()
        vector_to_parameters(weights, model.parameters())
        return version

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise TimeoutError(f"the lock of the shared weights was not free for {LOCK_TIMEOUT_S:.0f} s: its holder died")

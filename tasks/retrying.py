"""How every task of a point is run: retried only where that can help, never cached, its result kept in memory."""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE

from infra import errors
from infra.errors import EvalSkip, PinpointError

PERMANENT = (
    errors.SnapshotError,
    errors.PinViolation,
    errors.ConfigError,
    errors.StoreDenied,
    errors.NoCapacity,
    errors.BlackBoxFailed,
    EvalSkip,
)


def worth_retrying(error: BaseException) -> bool:
    """Whether trying again can help: an outage may pass, an invalid checkpoint stays invalid, a bug stays a bug."""
    return isinstance(error, PinpointError | TimeoutError) and not isinstance(error, PERMANENT)


def retry_condition(task: Any, run: Any, state: Any) -> bool:
    """Prefect asks this after a failure, of which `state.data` is the exception; the cause is in its log line anyway."""
    return isinstance(state.data, BaseException) and worth_retrying(state.data)


UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
RETRIED: dict[str, Any] = {
    **UNCACHED,
    "retries": 2,
    "retry_delay_seconds": [1, 5],
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": retry_condition,
}

"""A task is retried only where that can help, never cached, its result kept in memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prefect.cache_policies import NO_CACHE

from infra import errors
from infra.errors import EvalSkip
from tasks.export import export
from tasks.fleet import acquire_fleet
from tasks.pin import pin
from tasks.report import report
from tasks.retire import retire
from tasks.retrying import retry_condition, worth_retrying
from tasks.run_dataset import run_dataset
from tasks.skip import skip

TASKS = (export, acquire_fleet, pin, run_dataset, report, retire, skip)


@pytest.mark.parametrize(
    "error",
    [
        errors.StoreUnreachable("m"),
        errors.StoreError("m"),
        errors.ExportFailed("m"),
        errors.EngineDead("m", engine="e"),
        errors.EngineTimeout("m", engine="e"),
        errors.FleetUnhealthy("m"),
        errors.ServiceUnreachable("Ray", "a", "r"),
        TimeoutError(),
    ],
)
def test_an_outage_may_pass_and_is_retried(error: BaseException) -> None:
    assert worth_retrying(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.SnapshotInvalid("m", subject="s"),
        errors.SnapshotMissing("m"),
        errors.PinViolation("m", expected="a", reported={}),
        errors.ConfigError("m"),
        errors.DatasetError("m", path="p"),
        errors.StoreDenied("m"),
        errors.NoCapacity("m"),
        EvalSkip("mine"),
        KeyError("bug"),
        ValueError("bug"),
    ],
)
def test_what_stays_wrong_is_not_retried(error: BaseException) -> None:
    assert not worth_retrying(error)


def test_prefect_is_told_by_the_exception_of_the_state() -> None:
    assert retry_condition(None, None, SimpleNamespace(data=errors.StoreUnreachable("m")))
    assert not retry_condition(None, None, SimpleNamespace(data=KeyError("bug")))
    assert not retry_condition(None, None, SimpleNamespace(data=None))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_no_task_is_cached_persisted_or_without_a_deadline(task: object) -> None:
    assert task.cache_policy == NO_CACHE  # type: ignore[attr-defined]
    assert task.persist_result is False  # type: ignore[attr-defined]
    if task is not export:  # that one goes on as long as bytes move: infra/transfer.py
        assert task.timeout_seconds  # type: ignore[attr-defined]

"""The one table that turns an outage into an attributed skip; whatever is not in it is a bug of ours and fails the run."""

from __future__ import annotations

import pytest

from infra import errors
from infra.errors import EvalSkip
from infra.model import SkipReason
from tasks.skip import as_skip


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.SnapshotMissing("m"), "ckpt_missing"),
        (errors.SnapshotInvalid("m", subject="s"), "ckpt_invalid"),
        (errors.ExportFailed("m"), "export_failed"),
        (errors.StoreUnreachable("m"), "export_failed"),
        (errors.StoreDenied("m"), "export_failed"),
        (errors.PinViolation("m", expected="a", reported={}), "pin_violation"),
        (errors.NoCapacity("m"), "no_capacity"),
        (errors.LeaseLost("m"), "unhealthy"),
        (errors.FleetUnhealthy("m"), "unhealthy"),
        (errors.EngineDead("m", engine="e"), "unhealthy"),
        (errors.EngineTimeout("m", engine="e"), "unhealthy"),
        (errors.EngineRefused("m", engine="e", status=400), "unhealthy"),
        (errors.ServiceUnreachable("Ray", "a", "r"), "unhealthy"),
        (TimeoutError("slow"), "timeout"),
    ],
)
def test_an_outage_is_a_skip_with_its_reason_and_message(error: BaseException, reason: str) -> None:
    skip = as_skip(error)
    assert skip is not None
    assert skip.reason == SkipReason(reason)
    assert skip.message == str(error)


def test_a_users_own_skip_keeps_its_word() -> None:
    mine = EvalSkip("holiday", "not today")
    assert as_skip(mine) is mine


def test_a_timeout_without_words_is_a_timeout_and_the_flow_gives_it_words() -> None:
    skip = as_skip(TimeoutError())
    assert skip is not None
    assert (skip.reason, skip.message) == ("timeout", "")


@pytest.mark.parametrize(
    "bug", [KeyError("x"), AttributeError("x"), ZeroDivisionError(), errors.ConfigError("x"), OSError("x")]
)
def test_a_bug_or_a_setting_is_no_skip(bug: BaseException) -> None:
    assert as_skip(bug) is None

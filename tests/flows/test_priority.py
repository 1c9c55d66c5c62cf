"""Of those that wait for one fleet, a live run's point goes before a re-evaluation: the flow tells the fleet which it is."""

from __future__ import annotations

from typing import Any

import pytest

from flows import evaluate_snapshot
from infra.model import EvalRequest, LedgerTry
from tests.infra.examples import request

TRY = LedgerTry(key="a-b-c", number=1, id="claim")
LIVE, SAVED = request(), request().model_copy(update={"ledger": TRY})


def test_a_live_runs_point_has_the_lower_number() -> None:
    assert (LIVE.priority, SAVED.priority) == (0, 1)


class Asked(Exception):
    """The fleet was asked, which is as far as these tests go: tests/end_to_end/test_fleet.py shows who goes first."""


@pytest.mark.parametrize(("asking", "priority"), [(LIVE, 0), (SAVED, 1)])
async def test_the_fleet_is_asked_with_the_requests_priority(
    asking: EvalRequest, priority: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def acquire(spec: Any, snapshot: Any, holder: str, number: int) -> None:
        asked.append(number)
        raise Asked

    monkeypatch.setattr(evaluate_snapshot, "acquire_fleet", acquire)
    with pytest.raises(Asked):
        await evaluate_snapshot._evaluate(asking, None, {})  # type: ignore[arg-type]
    assert asked == [priority]

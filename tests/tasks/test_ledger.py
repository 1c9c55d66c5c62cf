"""A flow run executes its try of the ledger once, says that it is alive, and ends when it has lost it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

import pytest

from infra import ledger
from infra.errors import EngineRefused, PinViolation, SnapshotMissing
from infra.holds import is_held, live_holds
from infra.model import EvalRequest, LedgerKey, SnapshotSource
from infra.store import Store
from tasks import ledger as tasks_ledger
from tasks.ledger import NotOurs, executing, is_ours_to_settle, still_there
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import request as any_request
from tests.infra.saved_checkpoints import Root
from tests.services.waiting import until


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "home", steps=1)


@pytest.fixture
def submitted(root: Root) -> EvalRequest:
    assert root.steps() == [1]
    return root.sent[0]


async def test_a_try_is_executed_by_the_first_flow_run_and_refused_to_any_other(submitted: EvalRequest) -> None:
    async with executing(submitted):
        with pytest.raises(NotOurs, match="pinpoint retry"):
            async with executing(submitted):
                raise AssertionError("it ran twice")
    with pytest.raises(NotOurs):
        async with executing(submitted):
            raise AssertionError("it ran again")


async def test_what_is_no_reevaluation_just_runs(tmp_path: Path) -> None:
    async with executing(any_request(store_url=tmp_path.as_uri())):
        pass
    assert Store(tmp_path.as_uri()).list("") == {}


async def test_the_checkpoint_is_held_for_minutes_while_it_is_read_and_for_no_longer(
    root: Root, submitted: EvalRequest
) -> None:
    folder = root.saved / "step_1"
    assert [hold.ttl_s for hold in live_holds(folder)] == [6 * 3600.0]
    async with executing(submitted):
        await asyncio.to_thread(until, lambda: [hold.ttl_s for hold in live_holds(folder)] == [300.0])
    assert not is_held(folder)


async def test_a_flow_run_that_stood_still_ends_when_it_notices_that_its_try_was_taken(
    root: Root, submitted: EvalRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_ledger, "TTL_S", 0.2)
    cleaned = []

    async def flow() -> None:
        async with executing(submitted):
            assert submitted.ledger is not None
            entry = ledger.entry(root.store, LedgerKey.parse(submitted.ledger.key))
            assert entry.last is not None
            assert ledger.take_over(root.store, entry.last)
            try:
                await asyncio.sleep(60)
            finally:
                cleaned.append("up")

    with pytest.raises(NotOurs, match="taken over"):
        await flow()
    assert cleaned == ["up"]


async def test_while_it_runs_it_says_that_it_is_alive(
    root: Root, submitted: EvalRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_ledger, "TTL_S", 0.2)
    async with executing(submitted):
        ledger_folder = root.folder / "store" / "ledger"
        for file in ledger_folder.rglob("*"):
            os.utime(file, (time.time() - 3600, time.time() - 3600))
        await asyncio.to_thread(until, lambda: any(age < 1800 for age in ages_of(ledger_folder, "alive")))
        assert root.steps() == []


def ages_of(folder: Path, name: str) -> list[float]:
    return [time.time() - file.stat().st_mtime for file in folder.rglob(name)]


def test_a_crashed_flow_run_settles_its_own_try_and_no_other_ones(root: Root, submitted: EvalRequest) -> None:
    assert submitted.ledger is not None
    begun = (root.store, submitted.ledger, submitted.point, "nightly", "flow-1 abc")
    assert ledger.begin(*begun)
    assert not is_ours_to_settle(submitted, "flow-2")
    assert is_ours_to_settle(submitted, "flow-1")
    assert is_ours_to_settle(any_request(), "flow-2")


def test_one_that_was_cancelled_in_the_queue_settles_its_try_and_it_can_begin_no_more(
    root: Root, submitted: EvalRequest
) -> None:
    assert submitted.ledger is not None
    assert is_ours_to_settle(submitted, "flow-1")
    assert not ledger.begin(root.store, submitted.ledger, submitted.point, "nightly", "flow-1 abc")
    assert not is_held(root.saved / "step_1")


async def test_whatever_fails_of_a_checkpoint_that_is_gone_fails_because_it_is_gone(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "step_1")
    request = any_request().model_copy(update={"source": SnapshotSource(path=str(folder))})
    with pytest.raises(PinViolation):
        async with still_there(request):
            raise PinViolation("another version", expected="a", reported={})
    shutil.rmtree(folder)
    with pytest.raises(SnapshotMissing, match="was deleted while it was evaluated"):
        async with still_there(request):
            raise EngineRefused("can't load it", engine="http://there", status=400)
    with pytest.raises(FileNotFoundError):
        async with still_there(any_request(staged=str(folder))):
            raise FileNotFoundError(folder)

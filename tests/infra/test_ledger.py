"""A key is executed by one flow run at a time, and never again once it has a report, in whatever order the steps fall."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra import ledger
from infra.errors import ConfigError
from infra.ledger import Try
from infra.model import EvalReport, EvalRequest, LedgerKey, SkippedPoint
from infra.records import commit, find, history
from infra.saved.round import run_round
from infra.saved.survey import Survey
from infra.store import Store
from tests.infra.examples import REPORT, SKIPPED
from tests.infra.saved_checkpoints import FLEET, Root, begins
from tests.infra.triggers import executions, fire_together, submissions
from tests.services.s3 import S3Server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "home", steps=1)


def submitted(root: Root) -> EvalRequest:
    """One try at one key, submitted and not begun."""
    assert root.steps() == [1]
    return root.sent[-1]


def entry(root: Root, request: EvalRequest) -> ledger.Entry:
    assert request.ledger is not None
    return ledger.entry(root.store, LedgerKey.parse(request.ledger.key))


def last(root: Root, request: EvalRequest) -> Try:
    found = entry(root, request).last
    assert found is not None
    return found


def silent_for(root: Root, seconds: float) -> None:
    """So long nobody of the ledger has been heard of."""
    at = time.time() - seconds
    for file in (root.folder / "store" / "ledger").rglob("*"):
        os.utime(file, (at, at))


def test_32_triggers_at_once_in_threads_give_one_execution_of_each_checkpoint(tmp_path: Path) -> None:
    root = Root(tmp_path / "home", steps=2)
    fire_together(root, 32)
    assert executions(root) == submissions(root) == [1, 2]
    fire_together(root, 8)
    assert executions(root) == submissions(root) == [1, 2]


@pytest.mark.slow
def test_32_triggers_at_once_in_8_processes_give_one_execution_of_each_checkpoint(tmp_path: Path) -> None:
    root, go = Root(tmp_path / "home", steps=2), tmp_path / "go"
    command = [sys.executable, "-m", "tests.infra.triggers", str(root.folder), str(go), "4"]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    go.write_text("")
    assert [process.wait(timeout=120) for process in processes] == [0] * 8
    assert executions(root) == submissions(root) == [1, 2]


@pytest.mark.slow
def test_32_triggers_at_once_on_object_storage_give_one_execution(tmp_path: Path, s3: S3Server) -> None:
    root = Root(tmp_path / "home", steps=1)
    root.store = Store(f"s3://{s3.bucket}/ledger-{time.time_ns()}")
    fire_together(root, 32)
    assert executions(root) == submissions(root) == [1]


def test_a_claim_that_was_never_submitted_is_taken_over_after_its_time(root: Root) -> None:
    request = submitted(root)
    for file in (root.folder / "store" / "ledger").rglob("queued.json"):
        file.unlink()  # its trigger died in between
    silent_for(root, ledger.TTL_S - 20)
    assert root.steps() == []
    silent_for(root, ledger.TTL_S + 1)
    assert root.steps() == [1]
    assert not begins(root.store, request)  # if it was submitted after all
    assert begins(root.store, root.sent[-1])
    assert history(root.store, "run") == []


def test_one_that_waits_in_the_queue_has_hours(root: Root) -> None:
    submitted(root)
    silent_for(root, 3600)
    assert root.steps() == []
    silent_for(root, ledger.QUEUE_S + 1)
    assert root.steps() == [1]


def test_a_flow_run_that_died_is_succeeded_and_its_point_says_so(root: Root) -> None:
    request = submitted(root)
    assert begins(root.store, request)
    silent_for(root, ledger.TTL_S - 20)
    assert root.steps() == []
    silent_for(root, ledger.TTL_S + 1)
    assert root.steps() == [1]
    skipped = find(root.store, request.point, "nightly")
    assert isinstance(skipped, SkippedPoint)
    assert (skipped.reason, "taken it over" in skipped.message) == ("crashed", True)
    assert isinstance(root.report(root.sent[-1]), EvalReport)
    assert root.steps() == []


def test_a_flow_run_that_says_it_is_alive_keeps_its_try(root: Root) -> None:
    request = submitted(root)
    assert begins(root.store, request)
    assert request.ledger is not None
    silent_for(root, ledger.TTL_S + 1)
    ledger.renew(root.store, request.ledger)
    assert root.steps() == []
    assert not ledger.was_taken(root.store, request.ledger)


def test_a_holder_that_comes_back_finds_that_it_was_taken_and_its_report_does_not_count(root: Root) -> None:
    first = submitted(root)
    assert begins(root.store, first)
    silent_for(root, ledger.TTL_S + 1)
    assert root.steps() == [1]
    assert first.ledger is not None
    assert ledger.was_taken(root.store, first.ledger)
    second = root.sent[-1]
    assert second.point != first.point
    with pytest.raises(AssertionError):
        root.report(first)  # it may not begin again
    counts = commit(root.store, replace(REPORT, point=first.point, suite="nightly"))
    assert isinstance(counts, SkippedPoint)
    assert entry(root, second).report is None
    root.report(second)
    assert entry(root, second).report is not None


def test_a_report_that_comes_before_the_take_over_is_kept_and_nothing_is_paid_twice(root: Root) -> None:
    request = submitted(root)
    assert begins(root.store, request)
    silent_for(root, ledger.TTL_S + 1)
    dead = last(root, request)
    assert not dead.alive
    commit(root.store, root.measured(request))  # at the last moment
    assert not ledger.take_over(root.store, dead)
    assert root.steps() == []


def test_of_a_flow_run_that_begins_and_a_trigger_that_takes_over_one_has_the_try_in_any_order(tmp_path: Path) -> None:
    """Each creates `begun.json`; whoever comes first has it, also when the other has looked before."""
    for number, order in enumerate(itertools.permutations(("begins", "takes", "takes again"))):
        root = Root(tmp_path / str(number), steps=1)
        request = submitted(root)
        silent_for(root, ledger.QUEUE_S + 1)
        dead = last(root, request)  # seen before either does anything
        steps: dict[str, Callable[[], bool]] = {
            "begins": lambda root=root, request=request: begins(root.store, request),  # type: ignore[misc]
            "takes": lambda root=root, dead=dead: ledger.take_over(root.store, dead),  # type: ignore[misc]
            "takes again": lambda root=root, dead=dead: ledger.take_over(root.store, dead),  # type: ignore[misc]
        }
        done = {name: steps[name]() for name in order}
        assert done["takes"] == done["takes again"]
        assert done["begins"] != done["takes"], order
        assert done["begins"] == (order[0] == "begins")


def test_two_flow_runs_of_one_try_give_one_execution(root: Root) -> None:
    request = submitted(root)
    assert begins(root.store, request, "flow-1 a")
    assert not begins(root.store, request, "flow-1 b")
    assert begins(root.store, request, "flow-1 a")  # the S3 client's own retry meets its first write


def test_a_try_that_has_its_record_may_not_begin(root: Root) -> None:
    request = submitted(root)
    commit(root.store, replace(SKIPPED, point=request.point, suite="nightly"))
    assert not begins(root.store, request)


def test_what_was_given_up_is_tried_again_after_a_retry_by_key(root: Root) -> None:
    request = submitted(root)
    root.skip(request, "ckpt_invalid")
    assert root.steps() == []
    assert request.ledger is not None
    key = request.ledger.key
    ledger.forgive(root.store, ledger.find_key(root.store, key[:20]))
    assert root.steps() == [1]
    with pytest.raises(ConfigError, match="under way"):
        ledger.forgive(root.store, ledger.find_key(root.store, key))
    root.report(root.sent[-1])
    with pytest.raises(ConfigError, match="has a report"):
        ledger.forgive(root.store, ledger.find_key(root.store, key))
    with pytest.raises(ConfigError, match="nothing in the ledger"):
        ledger.find_key(root.store, "none")


def test_a_retry_forgives_what_was_and_not_what_comes(root: Root) -> None:
    care = {"settle_s": 0, "at_once": 100, "tries": 1}
    for _ in range(2):
        assert root.steps(care=care) == [1]
        root.skip(root.sent[-1])
        assert root.steps(care=care) == []
        ledger.forgive(root.store, entry(root, root.sent[-1]))


def test_what_is_not_the_ledgers_own_is_passed_over(root: Root) -> None:
    request = submitted(root)
    assert request.ledger is not None
    place, suite = request.ledger.key[:25], request.ledger.key[26:]
    for stray in (
        "ledger/.DS_Store",
        f"ledger/{place}/.DS_Store",
        f"ledger/{place}/{suite}/.DS_Store",
        f"ledger/{place}/{suite}/forgiven/.DS_Store",
        f"ledger/{place}/{suite}/0001/.DS_Store",
        f"ledger/{place}/{suite}/copy/claim.json",
        "ledger/notes/of/mine/claim.json",
    ):
        root.store.write(stray, b"")
    assert root.states() == {1: "under way"}
    assert [one.key.text for one in ledger.all_entries(root.store)] == [request.ledger.key]
    assert len(ledger.live_tries(root.store)) == 1
    assert ledger.find_key(root.store, "").key.text == request.ledger.key


def test_a_key_that_is_the_beginning_of_several_is_refused(tmp_path: Path) -> None:
    root = Root(tmp_path / "home", steps=2)
    assert root.steps() == [2, 1]
    with pytest.raises(ConfigError, match="2 entries of the ledger have a key that begins with ''"):
        ledger.find_key(root.store, "")


def test_a_try_that_can_not_be_read_may_begin_no_more_once_it_is_retried(root: Root) -> None:
    request = submitted(root)
    assert request.ledger is not None
    [path] = [path for path in root.store.list("ledger") if path.endswith("/claim.json")]
    root.store.write(path, b"")
    assert root.steps() == []
    ledger.forgive(root.store, ledger.find_key(root.store, request.ledger.key))
    assert root.steps() == [1]
    assert not begins(root.store, request)
    assert begins(root.store, root.sent[-1])


def test_only_what_waits_or_runs_is_alive(root: Root) -> None:
    assert ledger.live_tries(root.store) == []
    request = submitted(root)
    assert [one.state for one in ledger.live_tries(root.store)] == ["queued"]
    assert begins(root.store, request)
    assert [one.state for one in ledger.live_tries(root.store)] == ["running"]
    silent_for(root, ledger.TTL_S + 1)
    assert ledger.live_tries(root.store) == []
    assert root.steps() == [1]
    root.report(root.sent[-1])
    assert ledger.live_tries(root.store) == []


def test_what_was_queued_before_servers_were_named_is_read_as_it_was(root: Root) -> None:
    request = submitted(root)
    [path] = [path for path in root.store.list("ledger") if path.endswith("/queued.json")]
    root.store.write(path, b"flow-1")
    known = last(root, request)
    assert (known.flow_run, known.server) == ("flow-1", "")
    root.ended.add("flow-1")
    silent_for(root, ledger.TTL_S + 1)
    at_some_server = Survey.of(root.store, root.asked(), root.suite, FLEET, root.ended.__contains__, "http://there/api")
    assert [one.saved.step for one in run_round(at_some_server, FLEET, root.send).submitted] == [1]

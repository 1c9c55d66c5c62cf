"""`pinpoint reevaluate --dry-run` says what would run, `pinpoint retry` what has failed; Prefect gets each try once."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from flows import reevaluate, sending
from flows.cli import app
from flows.rounds import reevaluate_once
from flows.sending import Sender
from infra.config import Settings
from infra.errors import ConfigError, ServiceUnreachable
from infra.ledger import QUEUE_S
from infra.model import EvalRequest, Reevaluation
from infra.model.reevaluation import MARKERS
from infra.records import commit
from infra.saved.round import Done, run_round
from infra.saved.survey import Survey
from tests.fakes.prefect_server import FakePrefect
from tests.infra.saved_checkpoints import FLEET, Root, begins
from trainer_integration.prefect_api import PrefectApi

SUITE = "name: nightly\ndatasets:\n  - {name: sums, source: sums.jsonl, samples_per_prompt: 3}\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    made = Root(tmp_path / "home", steps=2)
    (made.folder / "suite.yaml").write_text(SUITE)
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "pinpoint"))
    monkeypatch.setenv("PINPOINT_STORE_URL", made.store.url)
    monkeypatch.setenv("PINPOINT_PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("COLUMNS", "250")
    return made


@pytest.fixture
def prefect() -> Iterator[FakePrefect]:
    with FakePrefect() as server:
        yield server


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_dry_run_lists_what_would_run_and_what_it_would_cost(root: Root) -> None:
    done = run("reevaluate", root.saved, "--suite", root.folder / "suite.yaml", "--settle", "0", "--limit", "1", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "2 checkpoints: 1 would run, 1 not looked at yet. It would cost 3 requests, 0.000 GB read." in done.output
    assert str(root.saved / "step_2") in done.output
    assert root.store.list("ledger") == {}


def test_what_can_not_be_meant_is_one_clear_line(root: Root) -> None:
    def refused(*arguments: str | Path) -> str:
        done = run("reevaluate", *arguments, "--dry-run")
        assert isinstance(done.exception, ConfigError), done.output
        return str(done.exception)

    suite = ("--suite", root.folder / "suite.yaml")
    assert "--suite" in refused(root.saved)
    assert "DATASET=SCORE" in refused(root.saved, *suite, "--order", "target", "--target", "sums")
    assert "order.target.score" in refused(root.saved, *suite, "--order", "target", "--target", "sums=nan")
    assert "needs a target" in refused(root.saved, *suite, "--order", "target")
    assert "newest" in refused(root.saved, *suite, "--order", "oldest")
    assert "is no folder" in refused(root.saved / "none", *suite)


def test_retry_lists_what_failed_and_opens_it_again(root: Root) -> None:
    assert "Nothing has failed" in run("retry").output
    assert root.steps() == [2, 1]
    for request in root.sent:
        root.skip(request, "ckpt_invalid")
    assert root.steps() == []
    listed = run("retry")
    assert "2 keys have no report" in listed.output
    assert "ckpt_invalid: as it were" in listed.output
    ticket = root.sent[0].ledger
    assert ticket is not None
    done = run("retry", ticket.key)
    assert done.exit_code == 0, done.output
    assert root.steps() == [2]


def request(root: Root) -> EvalRequest:
    root.steps(limit=1)
    return root.sent[0]


def test_prefect_gets_each_try_once_and_under_the_name_of_its_key(root: Root, prefect: FakePrefect) -> None:
    sender, asked = Sender(PrefectApi(prefect.api_url)), request(root)
    assert sender.send(asked) == sender.send(asked)
    [created] = prefect.runs
    assert asked.ledger is not None
    assert created.body["idempotency_key"] == f"reevaluate/{asked.ledger.key}/1/{asked.ledger.id}"
    assert {"run:run", "step:2", "reevaluation", f"ledger:{asked.ledger.key}"} <= set(created.body["tags"])


def test_two_stores_at_one_prefect_have_flow_runs_of_their_own_for_the_same_key(tmp_path: Path, prefect: FakePrefect) -> None:
    sender, asked = Sender(PrefectApi(prefect.api_url)), [request(Root(tmp_path / name, steps=1)) for name in ("one", "other")]
    assert len({one.ledger.key for one in asked if one.ledger}) == 1
    assert sender.send(asked[0]) != sender.send(asked[1])


def test_a_prefect_that_fails_for_a_moment_is_asked_again_and_one_that_stays_down_is_said_to_be(
    root: Root, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PAUSE_S", 0.01)
    monkeypatch.setattr(sending, "PATIENCE_S", 0.2)
    sender, asked = Sender(PrefectApi(prefect.api_url)), request(root)
    prefect.failing = 503
    with pytest.raises(ServiceUnreachable, match="evaluate_snapshot/pinpoint"):
        sender.send(asked)
    prefect.failing = None
    assert sender.send(asked)
    prefect.refusing = 409
    with pytest.raises(ServiceUnreachable, match="409"):
        sender.send(asked)


def test_a_flow_run_is_gone_if_it_has_ended_or_is_unknown_and_not_if_prefect_is_down(root: Root, prefect: FakePrefect) -> None:
    sender = Sender(PrefectApi(prefect.api_url))
    flow_run = sender.send(request(root))
    assert not sender.gone(flow_run)
    prefect.failing = 503
    assert not sender.gone(flow_run)
    prefect.failing = None
    prefect.runs[0].end("Cancelled")
    assert sender.gone(flow_run)
    prefect.forgets = True
    assert sender.gone(flow_run)
    assert isinstance(sender.api._client, httpx.Client)


def trigger(root: Root, prefect: FakePrefect) -> list[int]:
    """What a machine with such a Prefect submits."""
    sender = Sender(PrefectApi(prefect.api_url))
    survey = Survey.of(root.store, root.asked(), root.suite, FLEET, sender.gone, sender.server)
    return [one.saved.step for one in run_round(survey, FLEET, sender.send).submitted]


def silent_for(root: Root, seconds: float) -> None:
    at = time.time() - seconds
    for file in (root.folder / "store" / "ledger").rglob("*"):
        os.utime(file, (at, at))


def test_what_waits_at_another_machines_prefect_is_left_there_until_its_time_in_the_queue_is_over(
    tmp_path: Path, prefect: FakePrefect
) -> None:
    root = Root(tmp_path / "home", steps=1)
    with FakePrefect() as elsewhere:
        assert trigger(root, prefect) == [1]
        silent_for(root, 600)
        assert trigger(root, elsewhere) == []  # it has never heard of the flow run, which says nothing
        silent_for(root, QUEUE_S + 1)
        assert trigger(root, elsewhere) == [1]
        silent_for(root, 600)
        elsewhere.forgets = True
        assert trigger(root, prefect) == []
        assert trigger(root, elsewhere) == [1]


def test_each_machines_own_prefect_is_another_one_even_at_the_same_address(monkeypatch: pytest.MonkeyPatch) -> None:
    local, shared = Sender(PrefectApi("http://127.0.0.1:4200/api")), Sender(PrefectApi("http://prefect:4200/api"))
    names = []
    for host in ("one", "other"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        names.append((local.server, shared.server))
    assert names == [
        ("http://one:4200/api", "http://prefect:4200/api"),
        ("http://other:4200/api", "http://prefect:4200/api"),
    ]


@pytest.mark.parametrize("name", ["record.json", "claim.json"])
def test_retry_names_what_can_not_be_read_and_opens_it_again(root: Root, name: str) -> None:
    root.steps(limit=1)
    ticket = root.sent[0].ledger
    assert ticket is not None
    root.evaluate_all()
    [path] = [path for path in root.store.list("") if path.endswith(name)]
    root.store.write(path, b"{")
    listed = run("retry")
    assert listed.exit_code == 0, listed.output
    assert "1 keys have no report" in listed.output
    assert "can't be read" in listed.output
    assert run("retry", ticket.key[:12]).exit_code == 0
    assert root.steps(limit=1) == [2]


def test_the_commands_options_reach_what_is_asked(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Reevaluation] = []

    def once(given: Reevaluation, *more: Any, **named: Any) -> Any:
        asked.append(given)
        return reevaluate_once(given, *more, **named)

    monkeypatch.setattr(reevaluate, "reevaluate_once", once)
    (root.saved / "step_2" / "my-own").write_text("")
    suite = ("--suite", root.folder / "suite.yaml", "--dry-run", "--settle", "3600")
    assert "2 waits" in run("reevaluate", root.saved, *suite).output
    marked = run("reevaluate", root.saved, *suite, "--marker", "my-own", "--deadline", "60", "--trust-remote-code")
    assert "2 checkpoints: 1 would run, 1 waits" in marked.output, marked.output
    assert (asked[0].where.deadline_s, asked[0].where.trust_remote_code, asked[0].care.markers) == (3600, False, MARKERS)
    assert (asked[1].where.deadline_s, asked[1].where.trust_remote_code, asked[1].care.markers) == (60, True, ("my-own",))
    assert isinstance(run("reevaluate", root.saved, *suite, "--deadline", "0").exception, ConfigError)


def waited_for(root: Root, monkeypatch: pytest.MonkeyPatch, rounds: Sequence[Callable[[], object]]) -> bool:
    """Whether the command says that something came to no report; each of `rounds` is what happens before the next one."""
    left = list(rounds)

    def once(*_: Any, **__: Any) -> tuple[Done, list[dict[str, str]], str]:
        done = root.round()
        left.pop(0)() if left else None
        return done, [], ""

    monkeypatch.setattr(reevaluate, "reevaluate_once", once)
    monkeypatch.setattr(reevaluate, "POLL_S", 0.0)
    failed = reevaluate._until_done(root.asked(), root.suite, Settings(store_url=root.store.url), "http://nowhere/api")
    assert left == []
    return failed


def test_a_checkpoint_of_ours_that_is_gone_meanwhile_has_no_report_and_the_command_fails(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        for request in root.sent:
            root.skip(request, "ckpt_missing")
        shutil.rmtree(root.saved)
        root.saved.mkdir()

    assert waited_for(root, monkeypatch, [lost])


def test_one_that_is_gone_while_it_is_evaluated_is_waited_for(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def begun() -> None:
        assert all(begins(root.store, request) for request in root.sent)
        shutil.rmtree(root.saved)
        root.saved.mkdir()

    def ended() -> None:
        for request in root.sent:
            commit(root.store, root.measured(request))

    assert not waited_for(root, monkeypatch, [begun, ended])

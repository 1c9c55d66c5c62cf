"""`pinpoint reevaluate --dry-run` says what would run, `pinpoint retry` what has failed; Prefect gets each try once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from flows import sending
from flows.cli import app
from flows.sending import Sender
from infra.errors import ConfigError, ServiceUnreachable
from infra.model import EvalRequest
from tests.fakes.prefect_server import FakePrefect
from tests.infra.saved_checkpoints import Root
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

"""`pinpoint gate` ends with 0 only if the whole interval allows it, with 1 only if none of it does, and else with 3."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from infra.errors import ConfigError
from infra.model import EvalPoint
from infra.records import commit
from infra.store import Store
from tests.flows.test_compare import measured
from tests.infra.examples import SKIPPED


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Store:
    folder = tmp_path_factory.mktemp("gate")
    url = (folder / "store").as_uri()
    monkeypatch.setenv("PINPOINT_HOME", str(folder / "home"))
    monkeypatch.setenv("PINPOINT_STORE_URL", url)
    return Store(url)


def gate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["gate", *arguments])


def refused(*arguments: str) -> str:
    done = gate(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    return str(done.exception)


def test_a_point_that_is_surely_good_enough_passes(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25})
    done = gate("run@120", "--against", "run@100", "--min-delta", "-0.01")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("pass: run@120 (snapshot run120) against run@100 (snapshot run100), at least -0.01")
    assert "sums: pass, +0.667 [+0." in done.output


def test_one_that_is_surely_worse_fails(store: Store) -> None:
    measured(store, 100, {"sums": 25})
    measured(store, 120, {"sums": 5})
    done = gate("run@120", "--against", "run@100", "--min-delta", "-0.01")
    assert done.exit_code == 1, done.output
    assert done.output.startswith("fail: ")
    assert gate("run@120", "--against", "run@100", "--min-delta", "-0.95").exit_code == 0


def test_an_interval_on_both_sides_of_what_is_allowed_says_nothing(store: Store) -> None:
    measured(store, 100, {"sums": 15})
    measured(store, 120, {"sums": 14})
    done = gate("run@120", "--against", "run@100", "--min-delta", "-0.01")
    assert done.exit_code == 3, done.output
    assert done.output.startswith("inconclusive: ")


def test_each_dataset_has_to_pass(store: Store) -> None:
    measured(store, 100, {"sums": 5, "words": 25})
    measured(store, 120, {"sums": 25, "words": 5})
    assert gate("run@120", "--against", "run@100").exit_code == 1
    assert gate("run@120", "--against", "run@100", "--dataset", "sums").exit_code == 0
    done = gate("run@120", "--against", "run@100", "--json")
    assert done.exit_code == 1
    said = json.loads(done.output)
    assert (said["verdict"], said["snapshot"]) == ("fail", "run120")
    assert {row["dataset"]: row["verdict"] for row in said["datasets"]} == {"sums": "pass", "words": "fail"}


def test_the_gate_wants_the_snapshot_that_it_names(store: Store) -> None:
    digest = "abcdef0123456789"
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25}, snapshot_digest=digest)
    assert gate("run@120", "--against", "run@100", "--snapshot", digest[:10]).exit_code == 0
    assert "has measured snapshot abcdef0123456789, not 0badcafe" in refused(
        "run@120", "--against", "run@100", "--snapshot", "0badcafe"
    )
    assert "at least 8" in refused("run@120", "--against", "run@100", "--snapshot", "abc")


def test_a_baseline_cannot_satisfy_its_own_gate(store: Store) -> None:
    measured(store, 100, {"sums": 5}, snapshot_digest="same")
    measured(store, 120, {"sums": 25}, snapshot_digest="same")
    assert "a baseline can't satisfy its gate" in refused("run@120", "--against", "run@100", "--min-delta", "-1")


def test_a_point_on_live_engines_has_no_snapshot_to_gate(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25}, snapshot_digest=None)  # type: ignore[arg-type]
    assert "live engines" in refused("run@120", "--against", "run@100")


def test_a_point_that_was_skipped_can_not_be_told(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    commit(store, replace(SKIPPED, point=EvalPoint(run="run", step=120)))
    done = gate("run@120", "--against", "run@100")
    assert done.exit_code == 3
    assert "it was skipped, busy: 2 in flight" in done.output
    assert "no point at step 130" in refused("run@130", "--against", "run@100")

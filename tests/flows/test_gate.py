"""`pinpoint gate` ends with 0 only if the whole interval allows it, with 1 only if none of it does, and else with 3."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from flows.gate import Verdict, judge, overall
from infra.errors import ConfigError, RecordDamaged
from infra.model import Comparison, EvalPoint, PairedDifference
from infra.records import commit, point_prefix, record_key
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


def test_a_dataset_that_too_many_samples_of_have_failed_passes_no_gate(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25})
    key = record_key(EvalPoint(run="run", step=120), "suite")
    record = json.loads(store.read(key))
    record["results"][0] |= {"score": None, "no_score": "60 of 100 samples got no answer"}
    store.write(key, json.dumps(record).encode())
    done = gate("run@120", "--against", "run@100")
    assert done.exit_code == 3, done.output
    assert "has no score: 60 of 100 samples got no answer" in done.output


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
    for arguments in (("run@120", "--against", "run@100"), ("run@100", "--against", "run@120")):
        done = gate(*arguments)
        assert done.exit_code == 3
        assert "run@120 has no number under suite suite, it was skipped, busy: 2 in flight" in done.output
    assert json.loads(gate("run@120", "--against", "run@100", "--json").output)["verdict"] == "inconclusive"
    assert "no point at step 130" in refused("run@130", "--against", "run@100")


def skip(store: Store, step: int, *, attempt: int = 0, suite: str = "suite") -> None:
    commit(store, replace(SKIPPED, point=EvalPoint(run="run", step=step, attempt=attempt), suite=suite))


def test_a_skip_of_the_newest_attempt_is_not_hidden_by_an_earlier_one_that_was_measured(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25})
    skip(store, 120, attempt=2)
    done = gate("run@120", "--against", "run@100")
    assert done.exit_code == 3, done.output
    assert "run@120:2 has no number" in done.output
    assert gate("run@120:2", "--against", "run@100").exit_code == 3
    assert gate("run@120:0", "--against", "run@100").exit_code == 0


def test_a_number_of_the_newest_attempt_counts_though_an_earlier_one_was_skipped(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    skip(store, 120)
    measured(store, 120, {"sums": 25}, attempt=2)
    assert gate("run@120", "--against", "run@100").exit_code == 0


def test_a_suite_that_was_skipped_is_not_replaced_by_another_that_was_measured(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25})
    skip(store, 100, suite="only before")
    assert gate("run@120", "--against", "run@100").exit_code == 0
    skip(store, 120, suite="important")
    done = gate("run@120", "--against", "run@100")
    assert done.exit_code == 3, done.output
    assert "run@120 has no number under suite important" in done.output
    assert "--suite looks at one alone: suite" in done.output
    assert gate("run@120", "--against", "run@100", "--suite", "important").exit_code == 3
    assert gate("run@120", "--against", "run@100", "--suite", "suite").exit_code == 0


def test_a_suite_that_changed_at_one_of_the_points_names_the_attempts_that_were_asked_the_same(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25})
    measured(store, 120, {"sums": 25}, attempt=3, suite_digest="6" * 32)
    said = refused("run@120", "--against", "run@100")
    assert "run@100:0 and run@120:0 were asked the same (55555555): name these attempts" in said
    assert "--across-suites" not in said
    assert gate("run@120:0", "--against", "run@100:0").exit_code == 0


def test_a_suite_that_changed_between_the_points_is_evaluated_again_first(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25}, suite_digest="6" * 32)
    said = refused("run@120", "--against", "run@100")
    assert "evaluate run · step 000100 under the suite as it is now" in said
    assert "--across-suites" not in said


def test_a_re_evaluation_of_some_datasets_says_which_ones_are_not_looked_at(store: Store) -> None:
    for step, right in ((100, 5), (120, 25)):
        measured(store, step, {"sums": right, "words": 15})
        measured(store, step, {"sums": right}, attempt=1, suite_digest="6" * 32)
    done = gate("run@120", "--against", "run@100")
    assert done.exit_code == 0, done.output
    assert "* not looked at, as only another attempt at step 120 has them: words" in done.output
    assert "not looked at" not in gate("run@120:0", "--against", "run@100:0").output


def test_without_the_samples_nothing_can_be_told(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25})
    store.delete(f"{point_prefix(EvalPoint(run='run', step=100), 'suite')}/samples")
    done = gate("run@120", "--against", "run@100", "--min-delta", "-1")
    assert done.exit_code == 3, done.output
    assert "sums: inconclusive, no difference (its samples are not in the store" in done.output


def compared(**interval: float | str | None) -> Comparison:
    difference = PairedDifference(mean=0.0, stderr=0.1, n=30, gained=1, lost=1, **interval)  # type: ignore[arg-type]
    return Comparison(dataset="sums", against="asked", other=None, difference=difference)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01, 0.2, "pass"),
        (-0.0101, 0.2, "inconclusive"),
        (-0.2, -0.01, "inconclusive"),
        (-0.2, -0.0101, "fail"),
    ],
)
def test_an_interval_that_ends_at_the_least_difference_allowed_is_within_it(low: float, high: float, verdict: Verdict) -> None:
    assert judge(compared(low=low, high=high), -0.01).verdict == verdict


@pytest.mark.parametrize("ends", [{}, {"low": 0.5}, {"high": -0.5}])
def test_a_difference_without_an_interval_can_not_be_told(ends: dict[str, float]) -> None:
    said = judge(compared(note="one prompt in common: nothing can be said", **ends), 0.0)
    assert (said.verdict, said.reason) == ("inconclusive", "one prompt in common: nothing can be said")
    assert judge(compared(**ends), 0.0).reason == "it has no interval"


def test_a_fail_goes_before_what_can_not_be_told_and_that_before_a_pass() -> None:
    passed, failed, unknown = judge(compared(low=0, high=1), 0), judge(compared(low=-1, high=-0.5), 0), judge(compared(), 0)
    assert [one.verdict for one in (passed, failed, unknown)] == ["pass", "fail", "inconclusive"]
    assert overall([passed, unknown, failed]) == overall([failed, passed, unknown]) == "fail"
    assert overall([passed, unknown]) == overall([unknown, passed]) == overall([]) == "inconclusive"
    assert overall([passed, passed]) == "pass"


def test_several_datasets_end_with_the_worst_that_is_known_of_one(store: Store) -> None:
    measured(store, 100, {"better": 5, "same": 15, "worse": 25})
    measured(store, 120, {"better": 25, "same": 15, "worse": 5})
    assert gate("run@120", "--against", "run@100").exit_code == 1
    measured(store, 140, {"better": 25, "same": 15})
    assert gate("run@140", "--against", "run@100").exit_code == 3


def test_a_damaged_record_is_no_verdict_and_is_named(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25})
    key = record_key(EvalPoint(run="run", step=100), "suite")
    for data in (
        b'{"kind":"report", "po',
        b"\xff\xfe\x00{",
        b"[]",
        b'{"kind": "report"}',
        b'{"format": "new"}',
        b"[" * 100_000,
    ):
        store.write(key, data)
        done = gate("run@120", "--against", "run@100")
        assert isinstance(done.exception, RecordDamaged), done.output
        assert key in str(done.exception)


def test_what_is_no_name_of_a_run_is_refused(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    assert "run name '../x': use letters" in refused("../x@3", "--against", "run@100")
    assert "run name '..': use letters" in refused("run@100", "--against", "..@3")
    assert "names no point" in refused("run@" + "9" * 5000, "--against", "run@100")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a place where nothing can be written")
def test_an_error_that_nobody_foresaw_is_no_verdict(store: Store) -> None:
    measured(store, 100, {"sums": 5})
    measured(store, 120, {"sums": 25})
    command = [sys.executable, "-c", "from flows.cli import main; main()", "gate", "run@120", "--against", "run@100"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "the gate failed, which says nothing of the point" in done.stderr

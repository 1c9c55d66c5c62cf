"""`pinpoint history`: the runs of a store, and a run's points and curves, in whatever room the terminal has."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from flows.cli import app
from flows.history_tables import curves, points
from flows.terminal import PIPED_WIDTH
from infra.errors import ConfigError
from infra.model import Estimate, EvalPoint
from infra.records import commit, history, record_key
from infra.store import Store
from tests.infra.examples import REPORT, RESULT, SKIPPED, report_at
from tests.infra.measured_runs import HIDDEN, measured, skipped


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    url = (tmp_path / "store").as_uri()
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PINPOINT_STORE_URL", url)
    monkeypatch.delenv("COLUMNS", raising=False)
    return Store(url)


def shown(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["history", *arguments])


def row(output: str, name: str) -> list[str]:
    """The cells of the last row that begins with `name`."""
    return [line.split() for line in output.splitlines() if line.split()[:1] == [name]][-1]


def in_terminal(store: Store, width: int) -> str:
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(points("run", history(store, "run"), console))
        if drawn := curves(history(store, "run"), console):
            console.print(drawn)
    return captured.get()


def test_the_runs_are_listed_with_the_newest_first(store: Store) -> None:
    measured(store, 0, run="early")
    measured(store, 40, 13, run="late")
    skipped(store, 50, run="late")
    done = shown()
    assert done.exit_code == 0, done.output
    assert row(done.stdout, "late") == ["late", "2", "1", "50", "2026-01-01", "00:40", "sums", "0.650,", "words", "0.650"]
    assert row(done.stdout, "early") == ["early", "1", "0", "0", "2026-01-01", "00:00", "sums", "0.500,", "words", "0.500"]
    assert done.stdout.index("late") < done.stdout.index("early")


def test_a_store_without_runs_says_so(store: Store) -> None:
    assert shown().stdout == f"no runs yet in {store.url}\n"


def test_a_run_whose_records_are_damaged_does_not_hide_the_others(store: Store) -> None:
    measured(store, 0)
    store.write("runs/torn/points/step00000000-a0/suite/record.json", b"{")
    done = shown()
    assert done.exit_code == 0, done.output
    assert row(done.stdout, "torn")[1] == "unreadable"
    assert f"* torn: the record {store.url}/runs/torn/points/step00000000-a0/suite/record.json can't be read" in done.stdout
    assert "delete it" in done.stdout
    assert row(done.stdout, "run")[1] == "1"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that nobody can read from its beginning")
def test_a_record_that_nobody_may_read_does_not_hide_the_other_runs(store: Store) -> None:
    measured(store, 0)
    measured(store, 0, run="shut")
    record = store.local_path(record_key(EvalPoint(run="shut", step=0), "suite"))
    assert record is not None
    record.unlink()
    record.symlink_to("/proc/self/mem")
    done = shown()
    assert done.exit_code == 0, done.output
    assert row(done.stdout, "shut")[1] == "unreadable"
    assert "* shut: store " in done.stdout
    assert row(done.stdout, "run")[1] == "1"


def test_the_reason_why_a_run_is_unreadable_is_said_in_a_narrow_terminal_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    store.write("runs/torn/points/step00000000-a0/suite/record.json", b"{")
    assert "runs/torn/points/step00000000-a0/suite/record.json can't be read" in shown().stdout


def test_reading_leaves_a_store_as_it_is(store: Store, tmp_path: Path) -> None:
    """Also one whose name was mistyped: it is not made."""
    for command in (["history"], ["history", "run"], ["report", "run"], ["gate", "run@1", "--against", "run@2"], ["retry"]):
        CliRunner().invoke(app, command)
        assert not (tmp_path / "store").exists(), command
    measured(store, 0)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    root = (tmp_path / "store").stat().st_mtime_ns
    assert shown("run").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before
    assert (tmp_path / "store").stat().st_mtime_ns == root


def test_a_store_that_is_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    (tmp_path / "file").touch()
    done = shown("--store", (tmp_path / "file").as_uri())
    assert isinstance(done.exception, ConfigError)
    assert "is a file: name the folder of the store with --store" in str(done.exception)


def test_a_run_is_shown_point_by_point_with_its_curves(store: Store) -> None:
    measured(store, 0, 4)
    skipped(store, 20)
    measured(store, 40, 16)
    done = shown("run")
    assert done.exit_code == 0, done.output
    assert row(done.stdout, "0")[1:4] == ["0.200", "[0.10,", "0.30]"]
    assert "busy: 2 in flight" in done.stdout
    assert row(done.stdout, "sums") == ["sums", "▁×█", "0.200", "0.800"]
    assert "(×: no number)" in done.stdout


def test_what_is_piped_is_plain_and_never_folded(store: Store) -> None:
    for step in range(60):
        measured(store, step, samples=[])
    skipped(store, 60, message=f"a reason that is longer than any terminal is wide {HIDDEN} " + "and so on " * 10)
    done = shown("run")
    assert "\x1b" not in done.stdout
    assert "and so on " * 9 in done.stdout
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) < PIPED_WIDTH
    assert len(row(done.stdout, "sums")[1]) == 61


def test_the_newest_attempt_that_measured_a_step_is_on_the_curve(store: Store) -> None:
    measured(store, 0, 4)
    measured(store, 20, 20)
    measured(store, 20, 8, attempt=1)
    measured(store, 40, 12, attempt=1)
    skipped(store, 40, attempt=2)
    assert row(shown("run").stdout, "sums") == ["sums", "▁▅█", "0.200", "0.600"]


def test_suites_and_metrics_have_curves_of_their_own(store: Store) -> None:
    commit(store, report_at(0))
    commit(store, replace(REPORT, point=EvalPoint(run="run", step=0), suite="box", results=(), metrics={"loss": 1234.5}))
    done = shown("run").stdout
    assert "sums · suite" in done
    assert [line.split()[-1] for line in done.splitlines() if line.strip().startswith("loss · box")] == ["1234.5"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_every_number_is_whole_in_every_terminal(store: Store, width: int) -> None:
    measured(store, 0, 4)
    skipped(store, 20, "export_failed", "the disk of node-7 is full, and so are those of its neighbours")
    measured(store, 120, 16)
    output = in_terminal(store, width)
    assert max(len(line) for line in output.splitlines()) <= width
    for text in ("0.200 [0.10, 0.30]", "0.800 [0.70, 0.90]", "▁×█"):
        assert output.count(text) == 2, output
    assert "neighbours" in output.replace("\n", "").replace(" ", "")


LONG_NAMES = ("mmlu_high_school_european_history_5shot_cot", "leaderboard_math_counting_and_prob_hard/exact_match,none")


@pytest.mark.parametrize("width", [40, 60, 64, 72, 80])
def test_long_names_are_folded_and_cut_no_number(store: Store, width: int) -> None:
    results = tuple(replace(RESULT, dataset=name) for name in (LONG_NAMES[0], "gsm8k"))
    for step in (100, 1200):
        report = replace(REPORT, point=EvalPoint(run="run", step=step), results=results, metrics={LONG_NAMES[1]: 0.25})
        commit(store, report)
    output = in_terminal(store, width)
    lines = output.splitlines()
    assert max(map(len, lines)) <= width
    assert output.count("0.500 [0.30, 0.70]") == 4, output
    assert [line.split()[0] for line in lines if "0.500 [" in line] == ["100", "100", "1200", "1200"]
    assert sum(line.split()[-1:] == ["0.25"] for line in lines) == 2
    assert output.count("▅▅") == 3


@pytest.mark.parametrize("width", [40, 60, 80])
def test_suites_are_told_apart_in_every_terminal(store: Store, width: int) -> None:
    for suite, mean in (("suite", 0.25), ("b", 0.75)):
        score = Estimate(mean=mean, stderr=0.1, low=mean, high=mean, n=10)
        commit(store, replace(REPORT, suite=suite, results=(replace(RESULT, score=score),)))
    commit(store, replace(SKIPPED, point=EvalPoint(run="run", step=20), suite="b"))
    table = in_terminal(store, width).split("Curves")[0]
    for told, suite in (("0.250", "suite"), ("0.750", "b"), ("busy", "b")):
        [found] = [text for text in re.split(r"\n +(?=[12]0 )", table) if told in text]
        assert suite in found.split(), table


def test_only_skips_have_no_curve(store: Store) -> None:
    skipped(store, 0)
    done = shown("run")
    assert "busy: 2 in flight" in done.stdout
    assert "Curves" not in done.stdout


def test_a_run_that_is_not_there_is_refused_with_those_that_are(store: Store) -> None:
    measured(store, 0)
    done = shown("rum")
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"no run 'rum' in {store.url}; runs there: run"

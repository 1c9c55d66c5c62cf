"""`pinpoint compare`: the difference between two measured points, on the prompts that both were asked, or why there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from infra.errors import ConfigError
from infra.model import EvalPoint, EvalReport
from infra.records import commit, write_samples
from infra.store import Store
from tests.infra.examples import REPORT, RESULT, SKIPPED, sample


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    url = (tmp_path / "store").as_uri()
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PINPOINT_STORE_URL", url)
    monkeypatch.setenv("COLUMNS", "220")
    return Store(url)


def measured(store: Store, step: int, right: dict[str, int], run: str = "run", attempt: int = 0, **changes: str) -> None:
    """A point at which the first `right` of 30 prompts were answered right, by dataset."""
    point = EvalPoint(run=run, step=step, attempt=attempt)
    results = tuple(replace(RESULT, dataset=dataset) for dataset in right)
    report: EvalReport = replace(REPORT, point=point, results=results, **{"snapshot_digest": f"{run}{step}", **changes})  # type: ignore[arg-type]
    for dataset, count in right.items():
        prompts = [f"{dataset} {i}" for i in range(30)]
        samples = [sample(f"p{i}", 0, float(i < count), prompt=prompt) for i, prompt in enumerate(prompts)]
        write_samples(store, point, report.suite, dataset, samples)
    commit(store, report)


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def refused(*arguments: str) -> str:
    """The one line that the user reads: `main` prints a ConfigError as such, with exit code 2."""
    done = compare(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    assert done.output == ""
    return str(done.exception)


def test_two_points_of_a_run_are_compared_dataset_by_dataset(store: Store) -> None:
    measured(store, 40, {"sums": 5, "words": 20})
    measured(store, 80, {"sums": 25, "words": 20})
    done = compare("run@40", "run@80")
    assert done.exit_code == 0, done.output
    assert "step 80 minus step 40" in done.output
    sums, words = (line for line in done.output.splitlines() if line.strip().startswith(("sums", "words")))
    for text in ("+0.667 [+0.", "higher", "McNemar", " 30 ", "20 / 0"):
        assert text in sums
    for text in ("+0.000 [-0.114, +0.114]", "not told apart", "1 McNemar", "0 / 0"):
        assert text in words


def test_the_difference_is_of_the_second_minus_the_first(store: Store) -> None:
    measured(store, 40, {"sums": 5})
    measured(store, 80, {"sums": 25})
    made = json.loads(compare("run@80", "run@40", "--json").stdout)
    [only] = made["datasets"]
    assert only["difference"]["mean"] == pytest.approx(-2 / 3)
    assert (only["difference"]["verdict"], only["difference"]["n"], only["reason"]) == ("lower", 30, "")
    assert (made["first"]["step"], made["second"]["step"], made["suite"]) == (80, 40, "suite")
    assert made["first"]["scores"]["sums"]["mean"] == 0.5


def test_one_dataset_can_be_asked_for(store: Store) -> None:
    for step in (40, 80):
        measured(store, step, {"sums": 5, "words": 20})
    made = json.loads(compare("run@40", "run@80", "--dataset", "words", "--json").stdout)
    assert [one["dataset"] for one in made["datasets"]] == ["words"]
    assert "in common: sums, words" in refused("run@40", "run@80", "--dataset", "nobody")


def test_points_of_two_runs_are_compared_and_named(store: Store) -> None:
    measured(store, 40, {"sums": 5})
    measured(store, 40, {"sums": 9}, run="other")
    assert "other step 40 minus run step 40" in compare("run@40", "other@40").output


def test_the_newest_attempt_is_meant_unless_one_is_named(store: Store) -> None:
    measured(store, 40, {"sums": 5})
    measured(store, 40, {"sums": 9}, attempt=3)
    measured(store, 80, {"sums": 9})
    newest = json.loads(compare("run@40", "run@80", "--json").stdout)
    first = json.loads(compare("run@40:0", "run@80", "--json").stdout)
    assert (newest["first"]["attempt"], newest["datasets"][0]["difference"]["mean"]) == (3, 0.0)
    assert (first["first"]["attempt"], first["datasets"][0]["difference"]["gained"]) == (0, 4)
    assert "step 80 (attempt 0) minus step 40 (attempt 3)" in compare("run@40", "run@80").output


def test_a_suite_that_changed_between_the_points_is_refused_unless_asked_for(store: Store) -> None:
    measured(store, 40, {"sums": 5})
    measured(store, 80, {"sums": 9}, suite_digest="6" * 32)
    assert "suite suite changed between the points (digests 55555555 and 66666666)" in refused("run@40", "run@80")
    done = compare("run@40", "run@80", "--across-suites")
    assert done.exit_code == 0
    assert "how they were asked and graded may not be" in done.output


def test_without_a_common_prompt_the_reason_is_told_and_the_command_fails(store: Store) -> None:
    measured(store, 40, {"sums": 5})
    measured(store, 80, {"sums": 5})
    write_samples(store, EvalPoint(run="run", step=80), "suite", "sums", [sample("new")])
    done = compare("run@40", "run@80")
    assert done.exit_code == 1
    assert "no prompt has a grade at both points" in done.output


def test_the_same_weights_measured_twice_are_told_from_two_that_differ(store: Store) -> None:
    measured(store, 40, {"sums": 5}, snapshot_digest="same")
    measured(store, 40, {"sums": 9}, run="again", snapshot_digest="same")
    assert "same weights" in compare("run@40", "again@40").output


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_number_is_cut_in_a_narrow_terminal(store: Store, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    name = "mmlu_high_school_european_history_5shot_cot"
    measured(store, 40, {name: 5, "words": 20})
    measured(store, 80, {name: 25, "words": 20})
    monkeypatch.setenv("COLUMNS", str(width))
    done = compare("run@40", "run@80")
    table = [line for line in done.output.splitlines() if not line.startswith("*")]
    assert max(map(len, table)) <= width
    assert done.output.count("0.500 [0.30, 0.70]") == 4
    for text in ("+0.667 [+0.477, +0.808]", "higher", "1.9e-06 McNemar", "20 / 0", "0.254"):
        assert text in done.output


def test_what_is_piped_is_one_line_a_dataset(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    measured(store, 40, {"sums": 5})
    measured(store, 80, {"sums": 25})
    [line] = [line for line in compare("run@40", "run@80").output.splitlines() if line.strip().startswith("sums")]
    assert "0.500 [0.30, 0.70]" in line
    assert "20 / 0" in line


def test_many_points_are_warned_of(store: Store) -> None:
    for step in range(0, 120, 10):
        measured(store, step, {"sums": 5})
    assert "12 points x 1 dataset are 12 comparisons" in compare("run@0", "run@110").output


@pytest.mark.parametrize("text", ["run", "run@", "@40", "run@x", "run@40:", "run@-1", "run@40@50"])
def test_what_names_no_point_is_refused_with_an_example(store: Store, text: str) -> None:
    assert "RUN@STEP" in refused(text, "run@80")


def test_a_point_that_is_not_there_is_refused_with_those_that_are(store: Store) -> None:
    measured(store, 40, {"sums": 5})
    measured(store, 60, {"sums": 5}, attempt=1)
    assert "runs there: run" in refused("rum@40", "run@60")
    assert "no point at step 80; its points: 40, 60:1" in refused("run@40", "run@80")
    assert "no point at step 40:2" in refused("run@40:2", "run@60")
    assert "one point" in refused("run@40", "run@40")


def test_a_skipped_point_is_refused_with_its_reason(store: Store) -> None:
    measured(store, 40, {"sums": 5})
    commit(store, replace(SKIPPED, point=EvalPoint(run="run", step=80)))
    assert "it was skipped, busy: 2 in flight" in refused("run@40", "run@80")
    measured(store, 90, {"sums": 5})
    commit(store, replace(SKIPPED, point=EvalPoint(run="run", step=90, attempt=1)))
    assert "run@90:1 has no number under suite suite" in refused("run@40", "run@90")
    assert compare("run@40", "run@90:0").exit_code == 0


def test_of_several_suites_the_one_that_was_measured_at_both_points_is_meant(store: Store) -> None:
    for step in (40, 80):
        measured(store, step, {"sums": 5})
    measured(store, 40, {"words": 5}, suite="nightly")
    commit(store, replace(SKIPPED, point=EvalPoint(run="run", step=80), suite="nightly"))
    assert json.loads(compare("run@40", "run@80", "--json").stdout)["suite"] == "suite"
    assert "no number under suite nightly" in refused("run@40", "run@80", "--suite", "nightly")


def test_which_suite_is_meant_is_asked_for_where_there_are_several(store: Store) -> None:
    for step in (40, 80):
        measured(store, step, {"sums": 5})
        measured(store, step, {"words": 5}, suite="nightly")
    assert "choose one with --suite: nightly, suite" in refused("run@40", "run@80")
    assert "words" in compare("run@40", "run@80", "--suite", "nightly").output
    assert "no suite 'x' in common; those in common: nightly, suite" in refused("run@40", "run@80", "--suite", "x")


def test_points_without_a_common_suite_or_dataset_are_refused(store: Store) -> None:
    measured(store, 40, {"sums": 5})
    measured(store, 80, {"sums": 5}, suite="nightly")
    measured(store, 90, {"words": 5})
    assert "no suite in common: suite and nightly" in refused("run@40", "run@80")
    assert "no dataset with samples in common" in refused("run@40", "run@90")

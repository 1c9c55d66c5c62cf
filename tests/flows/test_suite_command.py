"""`pinpoint suite` says what is asked, what the digest is, and every row that can't be used, without starting anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.suite import app
from infra.datasets import suite_digest
from infra.errors import ConfigError
from infra.suite_files import load_suite
from infra.suites import ready_suite, ready_suites

SUITE = """\
defaults: {grader: numeric, sampling: {temperature: 0.5}}
datasets:
  - {name: sums, source: sums.jsonl}
  - {name: more, source: more.jsonl, on_bad_row: ON_BAD_ROW}
"""


def run(*words: str) -> Result:
    result = CliRunner().invoke(app, [*words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def suite(folder: Path, *more: str, on_bad_row: str = "fail") -> str:
    (folder / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n')
    (folder / "more.jsonl").write_text("".join(f"{line}\n" for line in more or ['{"prompt": "2+2=", "answer": 4}']))
    (folder / "s.yaml").write_text(SUITE.replace("ON_BAD_ROW", on_bad_row))
    return str(folder / "s.yaml")


def test_show_lists_the_ready_suites_and_prints_one_as_it_is_written() -> None:
    assert run("show").output.split() == ready_suites()
    file = ready_suite("gsm8k")
    assert file is not None
    assert run("show", "gsm8k", "--yaml").output == file.read_text()


def test_show_says_how_each_dataset_is_asked_and_graded(tmp_path: Path) -> None:
    shown = run("show", suite(tmp_path)).output
    for said in (
        "sums\n",
        f"source: {tmp_path / 'more.jsonl'}",
        "grader: numeric",
        "temperature 0.5",
        "    2+2=\n  its answer: 4",
    ):
        assert said in shown


def test_digest_prints_the_digest_alone(tmp_path: Path) -> None:
    assert run("digest", suite(tmp_path)).output == suite_digest(load_suite(tmp_path / "s.yaml")) + "\n"


def test_validate_names_every_bad_row_of_every_dataset_and_fails(tmp_path: Path) -> None:
    rows = ["{bad", '{"prompt": "?"}', '{"prompt": "2+2=", "answer": 4}', *["[]"] * 30]
    result = run("validate", suite(tmp_path, *rows))
    assert result.exit_code == 1
    for said in (
        "sums: 1 problems\n",
        "more: 1 problems, 32 bad rows",
        "more.jsonl, line 1: is not JSON",
        "line 2: has no 'answer'",
    ):
        assert said in result.output
    assert "and 12 more" in result.output
    assert "Suite s can't be evaluated: 1 of its datasets" in result.output


def test_validate_is_content_if_bad_rows_may_be_passed_over(tmp_path: Path) -> None:
    result = run("validate", suite(tmp_path, "{bad", '{"prompt": "2+2=", "answer": 4}', on_bad_row="skip"))
    assert result.exit_code == 0
    assert "more: 1 problems, 1 bad rows" in result.output
    assert f"Suite s is valid, digest {suite_digest(load_suite(tmp_path / 's.yaml'))}." in result.output


def test_validate_goes_on_after_a_dataset_that_cannot_be_read_at_all(tmp_path: Path) -> None:
    file = suite(tmp_path)
    (tmp_path / "sums.jsonl").write_text("\n")
    result = run("validate", file)
    assert result.exit_code == 1
    assert "sums.jsonl: holds no rows" in result.output
    assert "more: 1 problems" in result.output


@pytest.mark.parametrize("command", ["show", "digest", "validate"])
def test_a_suite_that_is_not_there_is_an_error_of_the_user(command: str) -> None:
    with pytest.raises(ConfigError, match="no ready suite has this name"):
        run(command, "nowhere")

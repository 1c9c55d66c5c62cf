"""`pinpoint report`: one page that opens from disk, at the place asked for, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app
from infra.errors import ConfigError
from infra.store import Store
from tests.infra.measured_runs import measured, skipped


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    url = (tmp_path / "store").as_uri()
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PINPOINT_STORE_URL", url)
    monkeypatch.chdir(tmp_path)
    return Store(url)


def report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


def refused(*arguments: str) -> str:
    """The one line that the user reads: `main` prints a ConfigError as such, with exit code 2."""
    done = report(*arguments)
    assert isinstance(done.exception, ConfigError), done.output
    assert done.output == ""
    return str(done.exception)


def test_the_page_is_where_it_was_asked_for(store: Store, tmp_path: Path) -> None:
    measured(store, 0)
    skipped(store, 20)
    done = report("run", "--html", "out.html")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{tmp_path / 'out.html'} (")
    assert done.stdout.count("\n") == 1
    made = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert made.startswith("<!DOCTYPE html>")
    assert "0.500 [0.40, 0.60]" in made


def test_a_name_in_brackets_is_shown_as_it_is(store: Store, tmp_path: Path) -> None:
    measured(store, 0)
    done = report("run", "--html", "out[best].html")
    assert done.stdout.startswith(f"{tmp_path / 'out[best].html'} (")


def test_without_a_name_it_is_called_as_the_run_is_and_may_be_written_anew(store: Store, tmp_path: Path) -> None:
    measured(store, 0)
    assert report("run").exit_code == 0
    measured(store, 20, 13)
    assert report("run").exit_code == 0
    assert "0.650 [0.55, 0.75]" in (tmp_path / "run.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["run.html"]


def test_how_many_samples_it_holds_can_be_chosen(store: Store, tmp_path: Path) -> None:
    measured(store, 0)
    shown = []
    for samples in ("0", "1", "50"):
        assert report("run", "--samples", samples).exit_code == 0
        shown.append((tmp_path / "run.html").read_text(encoding="utf-8").count('class="sample"'))
    assert shown == [0, 2 * 4, 2 * 20]


def test_a_run_that_is_not_there_is_refused_with_those_that_are(store: Store, tmp_path: Path) -> None:
    measured(store, 0)
    assert refused("rum") == f"no run 'rum' in {store.url}; runs there: run"
    assert not list(tmp_path.glob("*.html"))


def test_a_place_where_no_file_can_be_is_refused_with_a_remedy(store: Store, tmp_path: Path) -> None:
    measured(store, 0)
    assert "there is no folder nowhere; make it, or name another with --html" in refused("run", "--html", "nowhere/out.html")
    assert "is a folder: name a file with --html" in refused("run", "--html", str(tmp_path))
    assert not (tmp_path / "nowhere").exists()

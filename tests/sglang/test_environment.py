"""SGLang's own environment is built once for one set of requirement files, found again by their hash, never half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sglang import environment

PIP_THAT_IS_NOT_ONLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull}


@pytest.fixture(autouse=True)
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "requirements"
    folder.mkdir()
    (folder / "1-nothing.txt").write_text("# nothing\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", folder)
    monkeypatch.setenv(environment.HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.delenv(environment.PYTHON_VARIABLE, raising=False)
    for name, value in PIP_THAT_IS_NOT_ONLINE.items():
        monkeypatch.setenv(name, value)
    return folder


def test_an_environment_is_built_once_and_found_again() -> None:
    assert environment.interpreter() is None
    built = environment.build()
    subprocess.run([str(built), "-c", "import pip"], check=True)
    (built.parent / "mine").touch()
    assert environment.build() == environment.interpreter() == built
    assert (built.parent / "mine").exists()


def test_other_requirements_are_another_environment(requirements: Path) -> None:
    before = environment.folder()
    (requirements / "2-more.txt").write_text("# more\n")
    assert environment.folder() != before


def test_half_an_environment_is_not_used_and_built_anew(requirements: Path) -> None:
    (requirements / "2-absent.txt").write_text("there-is-no-such-package-as-this==0\n")
    with pytest.raises(subprocess.CalledProcessError):
        environment.build()
    assert (environment.folder() / "bin" / "python").exists()
    assert environment.interpreter() is None
    half = environment.folder()
    (half / "left over").touch()
    (requirements / "2-absent.txt").write_text("# gone\n")
    environment.folder().parent.mkdir(exist_ok=True)
    half.rename(environment.folder())
    environment.build()
    assert not (environment.folder() / "left over").exists()


def test_an_interpreter_that_is_named_is_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.PYTHON_VARIABLE, sys.executable)
    assert environment.interpreter() == Path(sys.executable)

"""A trainer's environment gets its end of Pinpoint and nothing else: no Prefect, no Ray, no package named `tasks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
ABSENT = ("prefect", "ray", "torch", "tasks", "flows", "s3fs")
IN_A_TRAINER = """
import importlib.util, json, sys
from pathlib import Path

from infra.config import Settings
from infra.errors import ConfigError
from infra.model import DatasetSpec, Suite
from infra.store import Store
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher

home = Path(sys.argv[1])
settings = Settings(home=home, staging_dir=home / "staging", prefect_api_url="http://127.0.0.1:9/api")
suite = Suite(name="sums", datasets=(DatasetSpec(name="sums", source=str(home / "sums.jsonl")),))


def export(folder: Path) -> None:
    (folder / "weights").write_text("of step 10")


dispatcher = EvalDispatcher(DispatchSettings(run="run", suite=suite, every=10), settings, export)
not_due = dispatcher.on_step(9)
point = dispatcher.on_step(10)
dispatcher.close()
try:
    without_s3fs = f"{Store('s3://bucket')} was made"
except ConfigError as error:
    without_s3fs = str(error)
found = [name for name in sys.argv[2:] if importlib.util.find_spec(name)]
print(json.dumps([not_due is None, point.skipped, found, without_s3fs]))
"""


def project(folder: Path) -> dict[str, list[str]]:
    declared: dict[str, list[str]] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return declared


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT / "trainer_integration"))
    subprocess.run([*PIP, *build], check=True)
    (made,) = folder.glob("*.whl")
    return made


def test_what_a_trainer_needs_is_what_pinpoint_needs_too() -> None:
    assert set(project(ROOT / "trainer_integration")["dependencies"]) <= set(project(ROOT)["dependencies"])


@pytest.mark.slow
def test_the_wheel_carries_both_packages_whole_and_no_other(wheel: Path) -> None:
    names = [name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name]
    modules = {str(path.relative_to(ROOT)) for top in ("infra", "trainer_integration") for path in (ROOT / top).rglob("*.py")}
    assert {name.split("/")[0] for name in names} == {"infra", "trainer_integration"}
    assert {name for name in names if name.endswith(".py")} == modules
    assert wheel.name == f"pinpoint_trainer-{project(ROOT)['version']}-py3-none-any.whl"


@pytest.mark.slow
def test_a_trainer_dispatches_a_point_with_the_light_dependencies_alone(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = ("--python", str(python), "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    subprocess.run([*PIP, *install], check=True)

    home = tmp_path / "home"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PINPOINT_", "PYTHON"))}
    script = [str(python), "-c", IN_A_TRAINER, str(home), *ABSENT]
    answer = subprocess.run(script, check=True, stdout=subprocess.PIPE, cwd=tmp_path, env=environment)
    not_due, skipped, importable, without_s3fs = json.loads(answer.stdout)

    assert (not_due, skipped, importable) == (True, None, [])
    assert "pinpoint-trainer[s3]" in without_s3fs
    (record,) = (home / "outbox").glob("*.json")
    delivery = json.loads(record.read_text())
    assert delivery["idempotency_key"].startswith("evaluate/run/step00000010-a0/sums/")
    staged = Path(delivery["parameters"]["request"]["source"]["path"])
    assert (staged / "weights").read_text() == "of step 10"

"""What is installed has every file that the packages read, and not only their modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "infra", "trainer_integration")
NO_DATA = {".pyc", ".toml"}


def files(top: Path) -> set[str]:
    return {str(file.relative_to(top)) for package in PACKAGES for file in (top / package).rglob("*") if file.is_file()}


@pytest.mark.slow
def test_a_wheel_holds_the_files_that_the_packages_read(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / "source" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(tmp_path / "source"))
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *build], check=True)
    [wheel] = tmp_path.glob("*.whl")
    needed = {name for name in files(ROOT) if Path(name).suffix not in NO_DATA}
    assert needed - set(ZipFile(wheel).namelist()) == set()

"""The staging area can be written, lies in memory, and has room for a model."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flows.diagnosis.finding import Finding

LITTLE_BYTES = 2 << 30
PIECE = "staging"


def check_staging(folder: Path) -> Sequence[Finding]:
    """Of this machine: a trainer stages on its own hosts, which `pinpoint doctor` there looks at."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".pinpoint-doctor-"):
            pass
    except OSError as error:
        return [Finding(piece=PIECE, verdict="fault", found=f"{folder}: {error}", remedy="set PINPOINT_STAGING_DIR")]
    free, kind = shutil.disk_usage(existing).free, _kind(existing)
    said = f"{folder} on {kind}, {free / (1 << 30):.1f} GiB free"
    if free < LITTLE_BYTES:
        remedy = "a trainer needs twice its model's bytes there with two points in flight: set PINPOINT_STAGING_DIR"
        return [Finding(piece=PIECE, verdict="note", found=said, remedy=remedy)]
    if kind != "tmpfs":
        remedy = "training waits for the copy: a folder in memory, as below /dev/shm, makes that short"
        return [Finding(piece=PIECE, verdict="note", found=said, remedy=remedy)]
    return [Finding(piece=PIECE, verdict="ok", found=said)]


def _kind(folder: Path) -> str:
    """The type of its file system."""
    asked = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "an unknown file system"

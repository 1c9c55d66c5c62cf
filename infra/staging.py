"""A staged model is in memory only as long as somebody will still export it: it is freed on every outcome, or found later.

Layout below the staging folder: `staged/RUN/POINT-ID/model`, the files, and `staged/RUN/POINT-ID/ttl`, the seconds after which
no point can want them any more.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from infra.model import EvalPoint

STAGED, MODEL, TTL = "staged", "model", "ttl"


def new_staged(staging_dir: Path, point: EvalPoint, ttl_s: float) -> Path:
    """An empty folder for the model of `point`; raises OSError if the staging area can't take it."""
    home = staging_dir / STAGED / point.run / f"{point.key}-{uuid.uuid4().hex[:8]}"
    (home / MODEL).mkdir(parents=True)
    (home / TTL).write_text(str(ttl_s))
    return home / MODEL


def free_staged(folder: Path) -> None:
    """Deletes a staged model and what was noted of it; freeing twice is harmless."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.name == MODEL and (folder.parent / TTL).exists():
        shutil.rmtree(folder.parent, ignore_errors=True)


def stale_staged(staging_dir: Path, wanted: Iterable[Path]) -> dict[Path, int]:
    """Staged models whose time is over and that are not among `wanted`, with their sizes in bytes."""
    keep = {path.absolute() for path in wanted}
    found: dict[Path, int] = {}
    for note in (staging_dir / STAGED).glob(f"*/*/{TTL}"):
        folder = note.parent / MODEL
        try:
            over = time.time() - note.stat().st_mtime > float(note.read_text())
        except (FileNotFoundError, ValueError):
            continue  # freed meanwhile, or being made
        if over and folder.absolute() not in keep:
            found[folder] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return found

"""A staged model is in memory only as long as somebody will still export it: it is freed on every outcome, or found later.

Layout below the staging folder: `staged/RUN/POINT-ID/model`, the files, and `staged/RUN/POINT-ID/ttl`, the seconds after which
no point can want them any more. Memory that is kept to be filled again is `spare/NAME`, what engines' nodes fetched is
`fetched/NAME`; processes that use them hold `NAME.lock` beside them as long as they live.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from infra.model import EvalPoint

STAGED, MODEL, TTL, SPARE, FETCHED = "staged", "model", "ttl", "spare", "fetched"


def new_staged(staging_dir: Path, point: EvalPoint, ttl_s: float) -> Path:
    """An empty folder for the model of `point`; raises OSError if the staging area can't take it."""
    home = staging_dir / STAGED / point.run / f"{point.key}-{uuid.uuid4().hex[:8]}"
    (home / MODEL).mkdir(parents=True)
    (home / TTL).write_text(str(ttl_s))
    return home / MODEL


def renew_staged(folder: Path) -> None:
    """Its time begins anew: somebody has yet to export it. Harmless for what is not staged, or not here."""
    with suppress(OSError):
        os.utime(folder.parent / TTL)


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
            found[folder] = sum(file.st_size for file in _files(folder))
    return found


def _files(folder: Path) -> Iterator[os.stat_result]:
    """Those that are there, however many of them somebody else is freeing at this moment."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.stat(os.path.join(place, name))
                if stat.S_ISREG(status.st_mode):
                    yield status


def lock_spare(folder: Path) -> int | None:
    """The lock of a folder for this process alone, as a descriptor; None if another has it. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(folder.with_name(f"{folder.name}.lock"), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        if is_lock_of(folder, descriptor):
            return descriptor
        os.close(descriptor)  # its last owner deleted it in between: another process may have made a new one


def is_lock_of(folder: Path, lock: int) -> bool:
    """False if it was deleted, by whomever: another process can have the folder then."""
    try:
        return os.path.samestat(os.fstat(lock), folder.with_name(f"{folder.name}.lock").stat())
    except OSError:
        return False


def free_spare(folder: Path, lock: int) -> None:
    """Deletes spare memory whose lock one has, then lets go of that; if the lock was deleted, another may have the memory."""
    if is_lock_of(folder, lock):
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)
    os.close(lock)


def share_fetched(folder: Path) -> int:
    """A lock of a folder of fetched snapshots that any number of processes may have, as a descriptor."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(folder.with_name(f"{folder.name}.lock"), os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if is_lock_of(folder, descriptor):
            return descriptor
        os.close(descriptor)  # who had it before has deleted it


def free_unlocked(staging_dir: Path, *, dry_run: bool) -> dict[Path, int]:
    """Spare memory and fetched snapshots whose processes are gone, with sizes in bytes; deleted, unless `dry_run`."""
    found: dict[Path, int] = {}
    places = (path for kind in (SPARE, FETCHED) for path in (staging_dir / kind).glob("*"))
    for folder in (path for path in places if path.is_dir()):
        try:
            lock = lock_spare(folder)
        except PermissionError:
            continue  # somebody else's
        if lock is None:
            continue
        found[folder] = sum(file.st_size for file in _files(folder) if file.st_nlink == 1)
        if dry_run:
            os.close(lock)
        else:
            free_spare(folder, lock)
    return found

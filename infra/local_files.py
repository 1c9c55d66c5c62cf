"""Local files behave like objects in a store: whole or absent, replaced at once, created by exactly one.

fsspec's own exclusive create lets several writers win, its overwrites can be read half-done, and its listing leaves out a whole
folder if one file in it vanishes meanwhile.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from infra.transfer import Transfer

TRIES = 10
BLOCK_BYTES = 2**20  # stays in a core's cache between reading, looking at and writing it
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` at the end of the body, and nothing's if the body fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, data: bytes) -> None:
    """Creates or replaces. Tries again if the folder is deleted meanwhile: object storage has no folders that could be."""
    for attempt in range(TRIES):
        try:
            with replacing(path) as file:
                file.write(data)
        except FileNotFoundError:
            if attempt == TRIES - 1:
                raise
        else:
            return


def create(path: Path, data: bytes) -> bool:
    """Writes a file that must not exist yet; False for all but one of several concurrent creators."""
    for _ in range(TRIES - 1):
        with suppress(FileNotFoundError):  # the folder was deleted meanwhile, see `write`
            return _create(path, data)
    return _create(path, data)


def _create(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:  # on the disk before it has its name: what is created is believed
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


@contextmanager
def opened(path: Path) -> Iterator[FileIO]:
    """A file to read, unbuffered, that still had its name when it was open. Raises FileNotFoundError.

    Memory of a staged file is filled again once its name is gone and nobody has it open: one that is opened in between would
    escape both looks.
    """
    with path.open("rb", buffering=0) as file:
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise FileNotFoundError(errno.ENOENT, "replaced while it was being opened", str(path))
        yield file


def copy(source: Path, path: Path, transfer: Transfer) -> None:
    """The bytes are on the disk before the file has its name: what names them later (a manifest) never promises too much."""
    block = memoryview(bytearray(BLOCK_BYTES))
    with opened(source) as reader, replacing(path) as writer:
        while n := reader.readinto(block):
            transfer.go_on()
            writer.write(block[:n])
            transfer.look(block[:n])
            transfer.moved(n)
        writer.flush()
        os.fdatasync(writer.fileno())


def read_range(path: Path, start: int, end: int) -> bytes:
    """Bytes [start, end), fewer where the file ends before."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def sizes(root: Path, start: Path) -> dict[str, int]:
    """Files at or below `start`, relative to `root`, with their sizes in bytes; those being written are left out."""
    found: dict[str, int] = {}
    for folder, _, names in os.walk(start):
        for name in names:
            try:
                status = os.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode) and not _TEMPORARY.fullmatch(name):
                found[str(Path(folder, name).relative_to(root))] = status.st_size
    if start.is_file():
        found[str(start.relative_to(root))] = start.stat().st_size
    return dict(sorted(found.items()))


def delete_stale_temporaries(root: Path, older_s: float) -> None:
    """What a killed process was writing: files that never got their name, by the clock of their file system."""
    for folder, _, names in os.walk(root):
        for path in (Path(folder, name) for name in names if _TEMPORARY.fullmatch(name)):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > older_s:
                    path.unlink()


def delete(path: Path) -> None:
    """Deletes a file or folder that may be gone already."""

    def gone_is_fine(_: object, __: str, failure: tuple[object, BaseException, object]) -> None:
        """So is what another process wrote there meanwhile: it stays, as it would in object storage."""
        error = failure[1]
        if not isinstance(error, FileNotFoundError) and getattr(error, "errno", None) != errno.ENOTEMPTY:
            raise error

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=gone_is_fine)
    else:
        path.unlink(missing_ok=True)

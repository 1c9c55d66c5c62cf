"""A due step whose trainer dies before its point is on its way is a skipped point all the same, at its step.

An intent is the record of that skip, in a file of the outbox, and is locked as long as its process lives: the kernel gives the
lock back however the process ends. Whoever looks at the folder next makes a delivery of each one that nobody holds. It takes
the name of the point's delivery, so that there is never one of each: the rename that gives a delivery its name decides.

An intent outlives its process, not its machine: it is written, and never synced.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from infra.errors import ConfigError
from infra.staging import free_staged
from trainer_integration.blank_files import give_name, write_whole
from trainer_integration.outbox import Delivery, Outbox

logger = logging.getLogger(__name__)
SUFFIX = ".intent"
TAKEN = (".json", ".refused", ".unreadable")  # what becomes of a delivery that was made
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class Intent:
    """What is to be recorded if this process dies now. `stem` names the point's delivery."""

    def __init__(self, outbox: Outbox, skip: Delivery) -> None:
        """Raises OSError if it can't be written. On a file system without locks there is no intent, only its name."""
        self.stem = outbox.new_stem()
        self.file = outbox.folder / f"{self.stem}{SUFFIX}"
        partial = outbox.folder / f"{self.stem}.partial"
        self._descriptor = outbox.files.take(partial)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(skip.model_dump_json())
            give_name(self._descriptor, partial, self.file)  # only with its lock
        except OSError as error:
            os.close(self._descriptor)
            partial.unlink(missing_ok=True)
            if error.errno not in NO_LOCKS:
                raise
            self._descriptor = -1
            logger.warning("pinpoint: %s has no file locks: a trainer that is killed may lose a point", outbox.folder)

    def stages(self, folder: Path) -> None:
        """Notes what is to be freed."""
        if self._descriptor >= 0:
            with suppress(OSError):  # then it is found by its age
                self._write(json.dumps(str(folder)))

    def fulfilled(self) -> None:
        """The point has its delivery."""
        if self._descriptor >= 0:
            with suppress(OSError):  # beside its delivery it says nothing any more
                self.file.unlink(missing_ok=True)
        self.given_up()

    def given_up(self) -> None:
        """The point will get no delivery from here: the intent is left to whoever looks next. Harmless after `fulfilled`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, line: str) -> None:
        write_whole(self._descriptor, f"{line}\n".encode())


def settle_left(outbox: Outbox) -> list[Delivery]:
    """Makes a delivery of each intent whose process is gone, frees what it staged, and gives those deliveries."""
    found = (_settled(outbox, file) for file in sorted(outbox.folder.glob(f"*{SUFFIX}")))
    return [delivery for delivery in found if delivery is not None]


def _settled(outbox: Outbox, file: Path) -> Delivery | None:
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _become_delivery(outbox, file) if file.exists() else None
    except BlockingIOError:
        return None  # its process lives, or another one settles it
    finally:
        os.close(descriptor)


def _become_delivery(outbox: Outbox, file: Path) -> Delivery | None:
    if any(file.with_suffix(suffix).exists() for suffix in TAKEN):  # it died between the two
        file.unlink(missing_ok=True)
        return None
    lines = file.read_text(encoding="utf-8").splitlines()
    try:
        skip = Delivery.model_validate_json(lines[0] if lines else "")
    except (ValidationError, ConfigError):
        file.rename(file.with_suffix(".unreadable"))
        return None
    for line in lines[1:2]:
        with suppress(ValueError):  # half a line: the folder is found by its age
            free_staged(Path(json.loads(line)))
    outbox.put(skip, stem=file.stem)
    file.unlink(missing_ok=True)  # it may have been delivered at once
    logger.warning("pinpoint: %s was left by a trainer that ended while it dispatched it", skip.name)
    return skip

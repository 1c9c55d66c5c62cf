"""A trainer's deliveries are its own as long as it lives: others leave them alone, unless they speak to the same Prefect.

Its name is that of a file in `home/owners`, locked as long as its process lives: the kernel gives the lock back in any case.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import uuid
from contextlib import suppress
from pathlib import Path

from trainer_integration.forks import let_go_in_children

logger = logging.getLogger(__name__)
FOLDER, SUFFIX = "owners", ".owner"
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class Owner:
    """Of this process, in `home`. Where it can't be written, or there are no locks, it has no name, and owns nothing."""

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER
        self.name, self._descriptor = f"{uuid.uuid4().hex}{SUFFIX}", -1
        partial = self.folder / f"{self.name}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.rename(self.folder / self.name)  # only with its lock
        except OSError as error:
            logger.warning("pinpoint: whoever has the same home may deliver what is dispatched here: %s", error)
            self._let_go(partial)
            self.name = ""
        let_go_in_children(self)
        self._forget_dead()

    def close(self) -> None:
        """What is left is for whoever comes next."""
        if self._descriptor >= 0:
            self._let_go(self.folder / self.name)

    def forked(self) -> None:
        """In a child: the name is the parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _let_go(self, file: Path) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        with suppress(OSError):
            file.unlink(missing_ok=True)
        if descriptor >= 0:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _forget_dead(self) -> None:
        for file in self.folder.glob(f"*{SUFFIX}"):
            if not lives(self.folder.parent, file.name):
                with suppress(OSError):
                    file.unlink(missing_ok=True)


def lives(home: Path, name: str) -> bool:
    """Whether a process holds that name. In doubt it does."""
    try:
        descriptor = os.open(home / FOLDER / name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    finally:
        os.close(descriptor)
    return False

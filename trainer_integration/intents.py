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
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from infra.errors import ConfigError, PinpointError
from infra.staging import free_staged
from trainer_integration.blank_files import give_name, write_whole
from trainer_integration.bounded import within
from trainer_integration.forks import let_go_in_children
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
        unnamed = outbox.folder / f"{self.stem}.partial"
        self._wait_s, self._turn = outbox.wait_s, threading.Lock()
        self._descriptor = outbox.files.take(unnamed)
        let_go_in_children(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(skip.model_dump_json())
            give_name(self._descriptor, unnamed, self.file)  # only with its lock
        except OSError as error:
            self.forked()
            unnamed.unlink(missing_ok=True)
            if error.errno not in NO_LOCKS:
                raise
            logger.warning("pinpoint: %s has no file locks: a trainer that is killed may lose a point", outbox.folder)

    def stages(self, folder: Path) -> None:
        """Notes what is to be freed."""
        self._soon(partial(self._write, json.dumps(str(folder))))  # else it is found by its age

    def fulfilled(self) -> None:
        """The point has its delivery, beside which the intent says nothing any more."""
        self._soon(self._end)

    def given_up(self) -> None:
        """The point will get no delivery from here: the intent is left to whoever looks next. Harmless after `fulfilled`."""
        self._soon(self._let_go)

    def _end(self) -> None:
        try:
            self.file.unlink(missing_ok=True)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that Python did not fork may have it open still
        os.close(descriptor)

    def _soon(self, work: Callable[[], object]) -> None:
        """One after the other, by a thread if the file system takes long. What fails is no matter of who trains."""

        def in_turn() -> None:
            with self._turn:
                if self._descriptor >= 0:
                    work()

        with suppress(OSError):
            within(self._wait_s, in_turn, lambda _: None)

    def forked(self) -> None:
        """In a child: the intent is the parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, line: str) -> None:
        write_whole(self._descriptor, f"{line}\n".encode())


def soon_intended(outbox: Outbox, skip: Delivery) -> Intent | None:
    """None if a file system that is not local takes long: training goes on without. Raises OSError if it can't be written."""

    def late(made: Intent | Exception) -> None:
        if isinstance(made, Intent):
            made.fulfilled()

    intent = within(outbox.wait_s, lambda: Intent(outbox, skip), late)
    if intent is None:
        logger.warning("pinpoint: %s is slow: a trainer that is killed now loses %s", outbox.folder, skip.name)
    return intent


def settle_left(outbox: Outbox) -> list[Delivery]:
    """Makes a delivery of each intent whose process is gone, frees what it staged, and gives those deliveries.

    Each fails for itself: one that can't be settled is said once, and tried again by whoever looks next.
    """
    found: list[Delivery] = []
    for file in sorted(outbox.folder.glob(f"*{SUFFIX}")):
        try:
            delivery = _settled(outbox, file)
        except (OSError, ValueError, PinpointError) as error:
            outbox.tell_once(file.name, f"what a dead trainer left can't be settled: {type(error).__name__}: {error}")
            continue
        if delivery is not None:
            found.append(delivery)
    return found


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
    lines = file.read_bytes().splitlines()
    first = lines[0] if lines else b""
    try:
        skip = Delivery.model_validate_json(first)
    except (ValidationError, ConfigError) as error:
        return outbox.set_aside(file, first, error)
    for line in lines[1:2]:
        with suppress(ValueError, TypeError):  # half a line: the folder is found by its age
            free_staged(Path(json.loads(line)))
    outbox.put(skip, stem=file.stem)
    file.unlink(missing_ok=True)  # it may have been delivered at once
    logger.warning("pinpoint: %s was left by a trainer that ended while it dispatched it", skip.name)
    return skip

"""Memory that a snapshot has left is filled again: most of a copy's cost is the kernel making new pages, not the copy.

A staged file keeps a second name in the spare folder. When the first is gone, the snapshot was sent and freed; whoever still
has it open, in any process, is seen by the kernel, which then refuses a lease. A lease is asked for through the one descriptor
that all ranks of a node share and map: these alone are no others, so their mappings stay from one export to the next. Only
files of exports that succeeded are kept: each of their pages exists, so that writing to a mapping can't fail on tmpfs.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import signal
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from infra.staging import free_spare, is_lock_of, lock_spare
from trainer_integration.sharded.files import ShardFile
from trainer_integration.sharded.kept import KeptFile, KeptFiles
from trainer_integration.sharded.lending import SOCKET, Lender, borrowed
from trainer_integration.sharded.sinks import Descriptor, Sink

logger = logging.getLogger(__name__)
DESCRIPTORS = 4  # one in so many of those that a process may have open is for this; the others are the trainer's


class Spare:
    """One rank's view of `folder`, which lies on the file system of the staging area and belongs to one exporter at a time.

    The rank that `leads` its node decides what is filled again, and lends the others its descriptors. The folder is deleted
    when the exporter is. If its process was killed the next one takes it over, or a sweep frees it: the kernel gives back its
    lock. While another has it, or it can't be made, nothing is kept: a warning says so once, and each export tries again.
    """

    def __init__(self, folder: Path, *, leads: bool, neighbours: bool = False) -> None:
        """`neighbours` says that other ranks write to the same files."""
        self.folder, self.neighbours, self.may_lead = folder, neighbours, leads
        self.borrows = neighbours and not leads
        self.kept = KeptFiles()
        self.free_names: set[str] = set()
        self._told: set[str] = set()
        self._begin(leads=leads)
        _alive.add(self)

    def _begin(self, *, leads: bool) -> None:
        self._lock = self._locked() if leads else None
        self._lender: Lender | None = None
        if self.leads and self.neighbours:
            with suppress(OSError):  # each rank opens for itself then
                self._lender = Lender(self.folder, self.kept.lent)
        self._ending = weakref.finalize(self, _end, self.kept, self._lender, self.folder, self._lock)

    @property
    def leads(self) -> bool:
        return self._lock is not None

    def free(self, files: Sequence[ShardFile]) -> None:
        """Decides, on the rank that leads, which files are filled again (`free_names`); what else is there is given up."""
        wanted, self.free_names = {file.name: file.n_bytes for file in files}, set[str]()
        affordable = self._is_affordable(len(files))
        self.borrows = affordable and self.neighbours and not self.may_lead
        leads = affordable and self.may_lead
        if leads != self.leads or not affordable or (leads and not self._has_folder()):
            self._ending()
            self._begin(leads=leads)
        for path in self._entries() if self.leads else ():
            with suppress(OSError):  # a folder that somebody made there, or another user's file
                if self._is_free(path, wanted.get(path.name)):
                    self.free_names.add(path.name)
                else:
                    path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Lets go, on every rank and before room is looked for, of what was given up: else nobody would have its memory."""
        for name, file in self.kept:
            if _inode(self.folder / name) != file.inode:
                self.kept.drop(name)

    def named(self, name: str, path: Path) -> bool:
        """Gives the file `name` its name of this export, if it is to be filled again and nobody deleted it meanwhile."""
        with suppress(OSError):
            if name in self.free_names:
                os.link(self.folder / name, path)
                return True
        return False

    def made(self, name: str, descriptor: int) -> None:
        """A new file of this export; the descriptor stays the caller's."""
        if self.leads:
            self.kept.put(name, os.dup(descriptor))

    def sink(self, name: str, path: Path, closing: ExitStack) -> Sink:
        """For the file `name`, staged at `path`; what this rank had to open for itself is closed with `closing`."""
        file = self.kept.get(name, path.stat().st_ino) or self._borrowed(name, path)
        if file is not None:
            return file.sink()
        descriptor = os.open(path, os.O_RDWR)
        closing.callback(os.close, descriptor)
        return Descriptor(descriptor)

    def keep(self, staged: Path, names: Sequence[str]) -> None:
        """After an export that succeeded on every rank."""
        for _, file in self.kept:
            file.filled = True
        for name in names if self.leads else ():
            with suppress(OSError):  # it is there already, or somebody was quicker to free it
                os.link(staged / name, self.folder / name)

    def left_by_fork(self) -> None:
        """In a forked child: what it inherited keeps no memory, and what its parent has is not its to delete."""
        self._ending.detach()
        if self._lock is not None:
            os.close(self._lock)  # the parent still has it: only its end lets another process lead
            self._lock = None
        self.kept.close_in_child()
        if self._lender is not None:
            self._lender.forget()

    def _locked(self) -> int | None:
        """The folder's lock, if this process can have it and the folder."""
        lock: int | None = None
        try:
            lock = lock_spare(self.folder)
            if lock is None:
                self._tell("another process has it")
            else:
                self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._tell(str(error))
            if lock is not None:
                os.close(lock)
            return None
        return lock

    def _has_folder(self) -> bool:
        """Whether nobody deleted it, its lock or the lender's socket, as what cleans up after a login session does."""
        there = self._lender is None or (self.folder / SOCKET).exists()
        return there and self.folder.is_dir() and self._lock is not None and is_lock_of(self.folder, self._lock)

    def _entries(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if path.name != SOCKET]
        except OSError as error:
            self._tell(str(error))
            return []

    def _is_affordable(self, n_files: int) -> bool:
        """The rank that leads has up to two descriptors a file, for leases and of its mapping, any other one."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = n_files * (2 if self.may_lead else 1)
        if limit == resource.RLIM_INFINITY or needed <= limit // DESCRIPTORS:
            return True
        self._tell(f"{needed} open files are too many for the limit of {limit} (ulimit -n)")
        return False

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            logger.warning("pinpoint: the memory of staged snapshots is not used again by way of %s: %s", self.folder, why)

    def _is_free(self, path: Path, n_bytes: int | None) -> bool:
        """Its other name first: once that is gone, nobody opens it any more."""
        with suppress(OSError):  # it is gone, or another user's
            status = path.stat()
            return status.st_nlink == 1 and status.st_size == n_bytes and nobody_else_has_open(self._file(path))
        return False

    def _file(self, path: Path) -> KeptFile:
        """One that this process has, or took over from a trainer that was killed."""
        return self.kept.get(path.name, path.stat().st_ino) or self.kept.put(path.name, os.open(path, os.O_RDWR))

    def _borrowed(self, name: str, path: Path) -> KeptFile | None:
        descriptor = borrowed(self.folder, name) if self.borrows else None
        if descriptor is not None and os.path.samestat(os.fstat(descriptor), path.stat()):
            return self.kept.put(name, descriptor, borrowed=True)
        self.borrows = False  # nobody lends here, or another exporter does: this export does not ask, nor wait, again
        if descriptor is not None:
            os.close(descriptor)
        return None


def nobody_else_has_open(file: KeptFile) -> bool:
    """Asks the kernel, which grants a write lease only on a file of which there is no other open description in any process.

    Duplicates of this descriptor, and mappings made through them, are of the same one. Where there are no leases, somebody may
    have it open. https://man7.org/linux/man-pages/man2/F_GETLEASE.2const.html
    """
    with suppress(OSError):
        fcntl.fcntl(file.descriptor, fcntl.F_SETSIG, signal.SIGURG)  # ignored; SIGIO would end the trainer if one opened it now
        fcntl.fcntl(file.descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file.descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    return False


def _inode(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None


def _end(kept: KeptFiles, lender: Lender | None, folder: Path, lock: int | None) -> None:
    if lender is not None:
        lender.close()
    kept.close()
    if lock is not None:
        free_spare(folder, lock)


def _forked() -> None:
    for spare in list(_alive):
        spare.left_by_fork()


_alive: weakref.WeakSet[Spare] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)

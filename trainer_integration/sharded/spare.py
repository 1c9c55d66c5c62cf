"""Memory that a snapshot has left is filled again: most of a copy's cost is the kernel making new pages, not the copy.

A staged file keeps a second name in the spare folder. When the first is gone, the snapshot was sent and freed; whoever still
has it open, in any process, is seen by the kernel, which then refuses a lease. A lease is asked for through the one descriptor
that all ranks of a node share and map: these alone are no others, so their mappings stay from one export to the next. Only
files of exports that succeeded are kept: each of their pages exists, so that writing to a mapping can't fail on tmpfs.
"""

from __future__ import annotations

import fcntl
import os
import signal
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from infra.staging import free_spare, lock_spare
from trainer_integration.sharded.files import ShardFile
from trainer_integration.sharded.kept import KeptFile, KeptFiles
from trainer_integration.sharded.lending import SOCKET, Lender, borrowed
from trainer_integration.sharded.sinks import Descriptor, Sink


class Spare:
    """One rank's view of `folder`, which lies on the file system of the staging area and belongs to one exporter at a time.

    The rank that `leads` its node decides what is filled again, and lends the others its descriptors. The folder is deleted
    when the exporter is. If its process was killed the next one takes it over, or a sweep frees it: the kernel gives back its
    lock. While another process has it, nothing is kept.
    """

    def __init__(self, folder: Path, *, leads: bool, neighbours: bool = False) -> None:
        """`neighbours` says that other ranks write to the same files."""
        lock = lock_spare(folder) if leads else None
        self.folder, self.leads, self.borrows = folder, lock is not None, neighbours and not leads
        self.kept = KeptFiles()
        self.free_names: set[str] = set()
        self._lender: Lender | None = None
        if self.leads:
            folder.mkdir(parents=True, exist_ok=True)
        if self.leads and neighbours:
            with suppress(OSError):  # each rank opens for itself then
                self._lender = Lender(folder, self.kept.lent)
        self._ending = weakref.finalize(self, _end, self.kept, self._lender, folder, lock)
        _alive.add(self)

    def free(self, files: Sequence[ShardFile]) -> None:
        """Decides, on the rank that leads, which files are filled again (`free_names`); what else is there is given up."""
        wanted, self.free_names = {file.name: file.n_bytes for file in files}, set[str]()
        for path in self.folder.iterdir() if self.leads else ():
            if path.name == SOCKET:
                continue
            if self._is_free(path, wanted.get(path.name)):
                self.free_names.add(path.name)
            else:
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Lets go, on every rank and before room is looked for, of what was given up: else nobody would have its memory."""
        for name, file in self.kept:
            if _inode(self.folder / name) != file.inode:
                self.kept.drop(name)

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
        self.kept.close_in_child()
        if self._lender is not None:
            self._lender.forget()

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
            return self.kept.put(name, descriptor)
        self.borrows = False  # nobody lends here, or another exporter does: this rank does not ask, nor wait, again
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

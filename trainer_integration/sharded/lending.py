"""Ranks of a node share the descriptor that one of them opened: to the kernel that is one user of the file, whoever maps it.

It goes from process to process through a socket in the spare folder, which is there as long as the lender. Whoever gets none,
for whatever reason, opens the file itself.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET = ".descriptors"
WAIT_S = 0.5  # of a training step
PAUSE_S = 0.1


class Lender:
    """Answers the ranks beside this one, in a thread of its own."""

    def __init__(self, folder: Path, lent: Callable[[str], int | None]) -> None:
        """`lent` gives a descriptor of a file by its name, to be closed here. Raises OSError for a folder without sockets."""
        (folder / SOCKET).unlink(missing_ok=True)  # of an owner that was killed
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(folder) as address:
                self._listener.bind(address)
            (folder / SOCKET).chmod(0o600)  # before anyone can connect
            self._listener.listen(128)
        except OSError:
            self._listener.close()
            raise
        threading.Thread(target=_serve, args=(self._listener, lent), name="pinpoint-lend", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # wakes the thread
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def forget(self) -> None:
        """In a forked child, whose parent goes on lending."""
        self._listener.close()


def _serve(listener: socket.socket, lent: Callable[[str], int | None]) -> None:
    with listener:  # whoever asks when this has ended is refused at once
        while listener.fileno() != -1:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed, or too many descriptors are open just now
                time.sleep(PAUSE_S)
                continue
            with connection, suppress(OSError):
                _answer(connection, lent)


def _answer(connection: socket.socket, lent: Callable[[str], int | None]) -> None:
    connection.settimeout(WAIT_S)
    descriptor = lent(connection.recv(4096).decode(errors="replace"))
    if descriptor is not None:
        try:
            socket.send_fds(connection, [b"."], [descriptor])
        finally:
            os.close(descriptor)


def borrowed(folder: Path, name: str) -> int | None:
    """The lender's descriptor of its file `name`, as one of this process; None if there is no lender or it has no such file."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _address(folder) as address:
            connection.settimeout(WAIT_S)
            connection.connect(address)
            connection.sendall(name.encode())
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    return descriptors[0] if descriptors else None


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """One that is short enough for a socket, whatever the folder's."""
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{place}/{SOCKET}"
    finally:
        os.close(place)

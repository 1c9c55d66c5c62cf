"""One worker as its owner sees it: frames go in and come out, and when it is gone all that it started is killed too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, Self

import anyio

from infra.grading.worker import LENGTH, STARTS

DYING_S = 1.0  # from the end of its output to its own end


class WorkerProcess:
    """`start` makes one, and whoever called it must `end` it."""

    def __init__(self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._gone = asyncio.Event()
        self.proven = False  # it has been made ready for something, so that whatever kills it now is not its start
        loop, name = asyncio.get_running_loop(), f"grader-watch-{process.pid}"
        threading.Thread(target=self._watch, args=(loop,), name=name, daemon=True).start()

    @classmethod
    async def start(cls) -> Self:
        """Raises OSError: no process can be started."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            with theirs:
                return cls(_spawned(theirs), reader, writer)
        except BaseException:
            writer.close()
            raise

    async def send(self, message: Any) -> None:
        """Raises ConnectionError: it is dead."""
        frame = pickle.dumps(message)
        self._writer.write(LENGTH.pack(len(frame)))
        self._writer.write(frame)
        await self._writer.drain()

    async def receive(self) -> tuple[str, Any]:
        """Raises EOFError: it died. What it sent may also be no reply: ValueError, TypeError, UnpicklingError."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            kind, result = pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EOFError from None
        return kind, result

    async def how_it_died(self) -> str:
        """Waits for it to die, but not for long."""
        with anyio.move_on_after(DYING_S):
            await self._gone.wait()
        self.kill()
        await self._gone.wait()
        code = self._process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    async def end(self) -> None:
        """Kills it, and returns when it is gone."""
        self.kill()
        with anyio.CancelScope(shield=True):
            await self._gone.wait()
        self._writer.close()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._kill_group()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own. Children of a dead worker would hold its pipe open, and go on."""
        self._process.wait()
        self._kill_group()
        with contextlib.suppress(RuntimeError):  # the loop has been closed, so nobody waits
            loop.call_soon_threadsafe(self._gone.set)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _spawned(pipe: socket.socket) -> subprocess.Popen[bytes]:
    """Blocks for milliseconds, and can't be cancelled halfway, when the process would be nobody's."""
    command = [sys.executable, "-c", STARTS, str(os.getpid()), *sys.path]
    return subprocess.Popen(command, stdin=pipe.fileno(), stdout=pipe.fileno(), start_new_session=True)

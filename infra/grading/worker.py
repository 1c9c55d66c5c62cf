"""The process that grades: it does what it is sent, one item after the other in its main thread, until its input ends.

Frames on standard input and output are a length (8 bytes, big-endian) and a pickle. In: (work, items), all of
them pickles themselves. Out: (READY, "") or (FAILED, reason) for the work, then (DONE, result) or (FAILED, reason) for each
item. What graders print goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from infra.errors import PinpointError
from infra.processes import die_with_parent

READY, DONE, FAILED = "ready", "done", "failed"
LENGTH = struct.Struct("!Q")
# Arguments: the parent's pid, and where it imports from.
STARTS = "import sys; sys.path[:] = sys.argv[2:]; from infra.grading.worker import main; main(int(sys.argv[1]))"


def main(parent: int) -> None:
    die_with_parent(signal.SIGKILL, parent)
    with contextlib.suppress(OSError):  # of all on this machine, memory is to be taken from the grader that ate it
        Path("/proc/self/oom_score_adj").write_text("1000")
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    serve(requests, replies)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    owner = os.getpid()
    prepared: dict[bytes, Callable[[Any], Any]] = {}
    while frame := _read(requests):
        packed, items = pickle.loads(frame)
        try:
            if packed not in prepared:
                prepared[packed] = pickle.loads(packed).prepare()
        except Exception as error:  # noqa: BLE001  (a grader may raise anything, and it is told)
            _write(replies, (FAILED, _said(error)))
            continue
        _write(replies, (READY, ""))
        for item in items:
            reply = _done(prepared[packed], item)
            if os.getpid() != owner:  # the grader forked, and both came back
                os._exit(0)
            _write(replies, reply)


def _done(call: Callable[[Any], Any], item: bytes) -> tuple[str, Any]:
    try:
        return DONE, call(pickle.loads(item))
    except Exception as error:  # noqa: BLE001  (as above)
        return FAILED, _said(error)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, PinpointError) else f"{type(error).__name__}: {error}"


def _read(requests: BinaryIO) -> bytes:
    head = requests.read(LENGTH.size)
    return requests.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""


def _write(replies: BinaryIO, reply: tuple[str, Any]) -> None:
    frame = pickle.dumps(reply)
    replies.write(LENGTH.pack(len(frame)) + frame)
    replies.flush()

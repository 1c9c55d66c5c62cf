"""A child process never outlives the one that started it, even if that one is killed.

`python -m infra.processes SIGNAL PARENT COMMAND...` asks the kernel for that and then becomes COMMAND, whatever program it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)
PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 15.0
GROUP_GRACE_S = 2.0


def die_with_parent(sign: int, parent: int) -> None:
    """Asks Linux to send `sign` to this process when the thread that started it ends; elsewhere does nothing.

    Source: prctl(2). `parent` is its pid, so that one that has gone before the call is noticed.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sign)
    if os.getppid() != parent:
        os.kill(os.getpid(), sign)


def end_group_with_parent(grace_s: float) -> None:
    """From now on, when this process has lost its parent for `grace_s` and is still there, its group is killed.

    Only for a process that leads a group of its own, as `start` makes them; raises RuntimeError for another.
    """
    parent = os.getppid()
    if os.getpgrp() != os.getpid():
        raise RuntimeError("this process does not lead its group, so the group is not its own to end")

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        time.sleep(grace_s)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="pinpoint-parent-watch", daemon=True).start()


def fated(command: Sequence[str], sign: int = signal.SIGTERM) -> list[str]:
    """`command`, made to get `sign` when the thread that starts it ends: start it from one that lives long enough."""
    return [sys.executable, "-m", "infra.processes", str(int(sign)), str(os.getpid()), *command]


def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A child in a session of its own (a terminal's Ctrl-C reaches only us) whose output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            fated(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ends a child by SIGTERM, then its whole process group by SIGKILL if it does not go; returns when it is gone."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            logger.warning("process %d did not end within %g s and is killed", process.pid, timeout_s)
    with contextlib.suppress(ProcessLookupError):
        deadline = time.monotonic() + GROUP_GRACE_S  # its helpers, a resource tracker for one, clean up after it
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])

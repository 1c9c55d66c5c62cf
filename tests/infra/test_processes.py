"""A child process never outlives the one that started it, even if that one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from infra.processes import start, stop
from tests.services.ended import ended

PARENT = """
import subprocess, sys, time
from infra.processes import fated
child = subprocess.Popen(fated([sys.executable, "-c", "import time; time.sleep(600)"], 9), start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def first_line(log: Path) -> str:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if log.exists() and "\n" in log.read_text():
            return log.read_text().splitlines()[0]
        time.sleep(0.02)
    raise AssertionError(f"nothing in {log}")


def test_a_child_dies_with_its_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.3)  # until it has become its command
    assert not ended(child, 0.1)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert ended(child, 5)


def test_a_child_that_ignores_sigterm_is_killed_with_its_group(tmp_path: Path) -> None:
    child = start([sys.executable, "-c", STUBBORN], tmp_path / "log", {})
    grandchild = int(first_line(tmp_path / "log"))
    started = time.monotonic()
    stop(child, timeout_s=0.3)
    assert time.monotonic() - started < 5
    assert child.returncode == -signal.SIGKILL
    assert ended(grandchild, 5)


def test_a_child_that_heeds_sigterm_ends_by_it_and_may_be_stopped_twice(tmp_path: Path) -> None:
    child = start([sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"], tmp_path / "log", {})
    assert first_line(tmp_path / "log") == "up"
    stop(child)
    stop(child)
    assert child.returncode == -signal.SIGTERM


def test_a_child_has_its_environment_its_log_and_a_session_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['X'], os.getsid(0) == os.getpid(), flush=True)"]
    child = start(command, tmp_path / "deep" / "log", {"X": "given"})
    assert child.wait(20) == 0
    assert (tmp_path / "deep" / "log").read_text() == "given True\n"
    assert os.getsid(0) != child.pid

"""Ctrl-C at any time ends everything that was started, and nothing is left behind: no process, no snapshot, no Ray session."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from infra.records import history
from infra.store import Store
from tests.end_to_end.command import PINPOINT, bare_environment
from tests.services.ports import free_port
from trainer_integration.outbox import staged_in_outbox


def processes_of(home: Path) -> list[psutil.Process]:
    """Whatever was started with this home in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PINPOINT_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def ray_folders(home: Path) -> set[Path]:
    """The session folders of the Ray that was started with this home."""
    commands = [process.cmdline() for process in processes_of(home)]
    return {Path(command[-1]) for command in commands if "flows.ray_node" in command}


def start_demo(home: Path) -> subprocess.Popen[str]:
    command = [PINPOINT, "demo", "--small", "--run", "stopped", "--steps", "500", "--every", "2", "--port", str(free_port())]
    environment = bare_environment(PINPOINT_HOME=str(home), PINPOINT_STAGING_DIR=str(home / "staging"))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def wait_for(home: Path, moment: str) -> None:
    """A moment of a demo's life: the server is starting, snapshots are staged, or the first record is there."""
    deadline = time.monotonic() + 300
    pattern = {
        "starting": "logs/prefect-server.log",
        "staged": "staging/staged/stopped/*/*",
        "running": "store/runs/*/points/*/*/*",
        "exported": "store/snapshots/*/*/manifest.json",
    }
    while not list(home.glob(pattern[moment])):
        assert time.monotonic() < deadline, f"the demo did not get as far as {moment}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("moment", "sign", "code"),
    [
        ("starting", signal.SIGINT, 130),
        ("staged", signal.SIGINT, 130),
        ("running", signal.SIGINT, 130),
        ("running", signal.SIGTERM, 143),
    ],
)
def test_nothing_is_left_when_the_demo_is_stopped(tmp_path: Path, moment: str, sign: int, code: int) -> None:
    home = tmp_path / "home"
    demo, rays = start_demo(home), set[Path]()
    try:
        wait_for(home, moment)
        rays = ray_folders(home)
        demo.send_signal(sign)
        time.sleep(0.2)
        demo.send_signal(signal.SIGINT)  # an impatient second Ctrl-C must not break the clean-up
        output, _ = demo.communicate(timeout=240)
    finally:
        demo.kill()
    assert demo.returncode == code, output
    assert "Traceback" not in output
    assert processes_of(home) == []
    assert [folder for folder in rays if folder.exists()] == []
    assert (moment == "starting") == (rays == set())
    assert [path for path in (home / "staging").rglob("*") if path.is_file()] == []
    assert list((home / "outbox").glob("*.json")) == []
    store = Store((home / "store").as_uri())
    assert store.list("snapshots") == {}
    if moment == "running":
        recorded = history(store, "stopped")
        assert recorded[0].point.step == 0


def test_a_demo_that_ends_by_itself_leaves_only_its_history(tmp_path: Path) -> None:
    home = tmp_path / "home"
    semaphores = set(Path("/dev/shm").glob("sem.mp-*"))
    environment = bare_environment(PINPOINT_HOME=str(home), PINPOINT_STAGING_DIR=str(home / "staging"))
    arguments = ("--small", "--run", "whole", "--steps", "4", "--every", "4", "--exit", "--port", str(free_port()))
    done = subprocess.run(
        [PINPOINT, "demo", *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "History in the UI: http://127.0.0.1:" in done.stdout
    assert processes_of(home) == []
    assert set(Path("/dev/shm").glob("sem.mp-*")) <= semaphores
    store = Store((home / "store").as_uri())
    assert [record.kind for record in history(store, "whole")] == ["report", "report"]
    assert {key.split("/")[0] for key in store.list("")} == {"runs", "comparisons", "measured"}


def test_nothing_runs_on_when_the_demo_is_killed_and_one_reclaim_frees_what_it_left(tmp_path: Path) -> None:
    """SIGKILL can't be handled, but no process outlives it; what is in the store and in staging is found by the leases."""
    home = tmp_path / "home"
    demo = start_demo(home)
    try:
        wait_for(home, "running")
        wait_for(home, "exported")
    finally:
        demo.kill()
        demo.communicate(timeout=30)
    deadline = time.monotonic() + 240
    while processes_of(home):
        assert time.monotonic() < deadline, [process.cmdline() for process in processes_of(home)]
        time.sleep(0.5)
    store = Store((home / "store").as_uri())
    recorded = history(store, "stopped")
    assert store.list("snapshots") != {}
    for file in (*(home / "store" / "leases").rglob("*"), *(home / "staging").rglob("*"), *(home / "outbox").glob("*")):
        os.utime(file, (time.time() - 86_400,) * 2)  # a day later, by the clock of a local store
    environment = bare_environment(PINPOINT_HOME=str(home), PINPOINT_STAGING_DIR=str(home / "staging"))
    done = subprocess.run([PINPOINT, "reclaim"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (store.list("snapshots"), store.list("leases")) == ({}, {})
    staged = {path.parent for path in (home / "staging").rglob("*.safetensors")}
    assert staged <= set(staged_in_outbox(home))
    assert history(store, "stopped") == recorded

"""A driver closes the gate of a producer elsewhere, and holds it closed only for as long as it lives and can be heard."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from infra.errors import ConfigError, ServiceUnreachable
from tests.services.ports import free_port
from tests.services.waiting import until
from trainer_integration import remote_gate
from trainer_integration.gate_server import serve_gate
from trainer_integration.pause_gate import PauseGate
from trainer_integration.remote_gate import RemoteGate

LONG_S = 60.0
DRIVER = """
import sys, time
from trainer_integration import remote_gate

remote_gate.LEASE_S = 1.5
with remote_gate.RemoteGate(sys.argv[1]).closed(600):
    print("closed", flush=True)
    time.sleep(600)
"""


@contextmanager
def served(key: str = "") -> Iterator[tuple[PauseGate, RemoteGate]]:
    gate = PauseGate(producer="rollouts.generate")
    with serve_gate(gate, key=key) as url:
        remote = RemoteGate(url, key=key)
        yield gate, remote
        remote.close()


def driver_of(remote: RemoteGate) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", DRIVER, remote.url], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_gate, "LEASE_S", 1.5)


def test_it_is_closed_for_the_body_and_reopens_after_it() -> None:
    with served() as (gate, remote):
        with remote.closed(LONG_S) as pause:
            assert not gate.enter(0)
            assert remote.status == gate.status
        assert gate.enter(0)
        assert (pause.unfinished, pause.lapsed) == (0, False)
        assert remote.producer == "rollouts.generate"


def test_it_is_held_for_longer_than_a_lease_while_the_driver_lives(short_lease: None) -> None:
    with served() as (gate, remote), remote.closed(LONG_S) as pause:
        assert not gate.enter(4)
    assert not pause.lapsed


def test_a_driver_that_is_killed_while_it_is_closed_opens_it(short_lease: None) -> None:
    with served() as (gate, remote), driver_of(remote) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "closed\n"
        assert not gate.enter(4), "the lease of 1.5 s is renewed"
        os.kill(driver.pid, signal.SIGKILL)
        assert gate.enter(30)


def test_it_is_not_held_beyond_its_time_by_a_driver_that_hangs(short_lease: None) -> None:
    with served() as (gate, remote):
        with remote.closed(0.6) as pause:
            assert gate.enter(5)
        assert pause.lapsed


def test_a_late_reopening_opens_nobody_elses_pause(short_lease: None) -> None:
    with served() as (gate, remote):
        late = remote.closed(0.1)
        late.__enter__()
        until(lambda: gate.status.open)
        with remote.closed(LONG_S):
            late.__exit__(None, None, None)
            assert not gate.enter(0.1)


def test_a_renewal_that_comes_after_the_reopening_does_not_close_it_again() -> None:
    with served() as (gate, remote):
        path = f"{remote.url}/closers/mine"
        assert httpx.put(path, json={"for_s": 60}).status_code == 200
        assert httpx.delete(path).json()["held"] is True
        assert httpx.put(path, json={"for_s": 60}).status_code == 410
        assert gate.status.open


def test_what_is_under_way_is_waited_for_and_counted() -> None:
    with served() as (gate, remote):
        assert gate.enter()
        with remote.closed(LONG_S, settle_s=0.2) as pause:
            assert pause.unfinished == 1
        gate.leave()
        with remote.closed(LONG_S, settle_s=5) as pause:
            assert pause.unfinished == 0


def test_a_gate_that_cannot_be_reached_is_told_by_its_address() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServiceUnreachable, match=address), RemoteGate(address).closed(LONG_S):
        pass


def test_the_key_is_asked_for_on_every_path() -> None:
    with served(key="k") as (gate, remote):
        for wrong in ("", "other"):
            with pytest.raises(ServiceUnreachable, match="401"), RemoteGate(remote.url, key=wrong).closed(LONG_S):
                pass
            assert httpx.get(f"{remote.url}/gate").status_code == 401
            assert httpx.delete(f"{remote.url}/closers/x").status_code == 401
        assert gate.status.open
        with remote.closed(LONG_S):
            assert not gate.status.open


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"for_s": -1}', '{"for_s": "soon"}', '{"for_s": 1e999}', '{"for_s": NaN}'])
def test_what_is_no_closing_closes_nothing(body: str) -> None:
    with served() as (gate, remote):
        assert httpx.put(f"{remote.url}/closers/mine", content=body).status_code == 400
        for path in ("/", "/closers", "/closers/", "/closers/a/b", "/gates"):
            assert httpx.put(remote.url + path, json={"for_s": 1}).status_code == 404
        assert gate.status.open


def test_a_gate_that_others_can_reach_needs_a_key() -> None:
    with pytest.raises(ConfigError, match="give it a key"), serve_gate(PauseGate(), host="0.0.0.0"):
        pass


def test_a_client_that_says_nothing_holds_up_no_other() -> None:
    with served() as (gate, remote):
        with socket.create_connection(("127.0.0.1", int(remote.url.rsplit(":", 1)[1]))):
            started = time.monotonic()
            with remote.closed(LONG_S):
                assert not gate.status.open
        assert time.monotonic() - started < 3

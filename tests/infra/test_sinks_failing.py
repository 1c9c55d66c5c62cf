"""A sink that is down, refuses or hangs delays nothing and loses nothing; one that died had its turn."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from infra.records import commit
from infra.sinks import Place, SinkFailed, background, shown, turns
from infra.sinks.metrics import TrackedPoint, points_of
from infra.sinks.projection import project
from infra.sinks.sent import send_missing
from infra.sinks.turns import turn
from infra.store import Store
from tests.infra import sink_readers
from tests.infra.examples import report_at
from tests.services.ports import free_port
from tests.services.waiting import until

Sent = list[tuple[int, str]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("PINPOINT_", "WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    place = Place(store=Store((tmp_path / "store").as_uri()), run="run", home=tmp_path / "home")
    for step in (0, 20):
        commit(place.store, report_at(step))
    return place


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def ended(pids: list[int], within_s: float) -> bool:
    children = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(children, timeout=within_s)
    return not alive


def log_of(place: Place) -> str:
    return (place.home / "logs" / "sinks.log").read_text()


@pytest.mark.slow
def test_a_sink_that_refuses_is_named_and_gets_everything_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://us:very-secret@127.0.0.1:{free_port()}?password=very-secret")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(SinkFailed, match=r"sink mlflow \(http://127.0.0.1:\d+ experiment pinpoint\) failed") as caught:
        project("mlflow", place)
    assert "very-secret" not in str(caught.value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert project("mlflow", place)[1:] == (2, 2)


def test_of_an_address_only_what_is_no_secret_is_shown() -> None:
    assert shown("postgresql://u:p@db:5432/mlflow?sslmode=x experiment a") == "postgresql://db:5432/mlflow experiment a"
    assert shown("sqlite:///a/b.db experiment what?") == "sqlite:///a/b.db experiment what?"
    assert shown("https://api.wandb.ai me@here/p run r-eval, online") == "https://api.wandb.ai me@here/p run r-eval, online"


@pytest.mark.slow
def test_wandb_without_a_key_is_a_failure_and_not_a_question(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place.home))
    monkeypatch.setenv("NETRC", str(place.home / "netrc"))
    with pytest.raises(SinkFailed, match="sink wandb"):
        project("wandb", place)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert project("wandb", place)[1:] == (2, 2)


@pytest.mark.slow
def test_a_sink_that_hangs_delays_nobody_and_is_ended_at_its_deadline(
    place: Place, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINPOINT_SINKS", "mlflow,jsonl")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent)
    monkeypatch.setattr(background, "DEADLINE_S", 15)
    started = time.monotonic()
    hanging, quick = background.start(place.store.url, "run")
    assert time.monotonic() - started < 2.0
    assert ended([quick], 14.0)
    assert sink_readers.of_jsonl(place.home, "run", "eval/step") == [(0, 0.0), (20, 20.0)]
    assert psutil.pid_exists(hanging)
    assert ended([hanging], 20.0)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert project("mlflow", place)[1:] == (2, 2)


@pytest.mark.slow
def test_what_one_point_missed_is_written_with_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPOINT_SINKS", "tensorboard")
    place.home.mkdir()
    (place.home / "sinks").write_text("in the way")
    assert ended(background.start(place.store.url, "run"), 60.0)
    assert "sink tensorboard" in log_of(place)
    assert "Traceback" not in log_of(place)
    (place.home / "sinks").unlink()
    commit(place.store, report_at(40))
    assert ended(background.start(place.store.url, "run"), 60.0)
    assert [step for step, _ in sink_readers.of_tensorboard(place.home, "run", "eval/step")] == [0, 20, 40]
    assert "3 of 3 points were new to" in log_of(place)


def test_without_sinks_nothing_is_started(place: Place) -> None:
    assert background.start(place.store.url, "run") == []
    assert not place.home.exists()


def test_settings_that_can_not_be_read_cost_the_projection_and_not_the_point(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PINPOINT_SINKS", "wandbb")
    assert background.start(place.store.url, "run") == []
    assert "run run is not projected now: no sink 'wandbb'" in caplog.text


def sending(place: Place, sent: Sent, fails_after: int | None = None) -> int:
    def send(missing: list[tuple[int, TrackedPoint]]) -> None:
        for count, (at, point) in enumerate(missing):
            if count == fails_after:
                raise ConnectionError("cut off")
            sent.append((at, point.key.partition("-")[0]))

    return send_missing(place, "fake", "somewhere", points_of(place.store, place.run), send)


def test_points_that_were_cut_off_are_sent_again_at_the_same_places(place: Place) -> None:
    sent: Sent = []
    with pytest.raises(ConnectionError):
        sending(place, sent, fails_after=1)
    commit(place.store, report_at(10))
    assert sent == [(0, "step00000000")]
    assert sending(place, sent) == 3
    assert sent[1:] == [(0, "step00000000"), (1, "step00000020"), (2, "step00000010")]
    assert sending(place, sent) == 0


def test_of_many_turns_no_two_are_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LOOK_S", 0.001)
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with turn(place.store, "runs/run/sinks/x/turns"):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.005)
            inside.remove(number)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(36)))
    assert most == [1] * 36
    assert len(place.store.list("runs/run/sinks/x/turns")) == 2 * turns.KEPT


def test_the_turn_of_a_process_that_was_killed_is_over_after_a_while(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LOOK_S", 0.01)
    monkeypatch.setattr(turns, "STALE_S", 0.5)
    place.store.create("turns/00000003", b"")
    started = time.monotonic()
    with turn(place.store, "turns"):
        assert time.monotonic() - started > 0.4
        assert sorted(place.store.list("turns")) == ["turns/00000003", "turns/00000004"]


@pytest.mark.slow
def test_a_turn_that_takes_long_is_renewed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LOOK_S", 0.01)
    monkeypatch.setattr(turns, "RENEW_S", 0.05)
    order: list[str] = []

    def second() -> None:
        with turn(place.store, "turns"):
            order.append("second")

    with ThreadPoolExecutor(1) as pool, turn(place.store, "turns"):
        pool.submit(second)
        [mine] = [path for key in place.store.list("turns") if (path := place.store.local_path(key))]
        for _ in range(3):
            os.utime(mine, (time.time() - 0.9 * turns.STALE_S,) * 2)
            until(lambda: time.time() - mine.stat().st_mtime < 0.5 * turns.STALE_S)
        order.append("first")
    assert order == ["first", "second"]


def test_a_turn_that_was_tidied_away_is_not_taken_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looked before two turns came and went, and creates only now the one whose object was deleted in between."""
    monkeypatch.setattr(turns, "LOOK_S", 0.01)
    real = place.store.list
    stale: list[dict[str, int]] = [{}]

    def looking_back(prefix: str) -> dict[str, int]:
        return stale.pop() if stale else real(prefix)

    for _ in range(turns.KEPT + 3):
        with turn(place.store, "turns"):
            pass
    assert "turns/00000001" not in real("turns")
    monkeypatch.setattr(place.store, "list", looking_back)
    with turn(place.store, "turns"):
        assert "turns/00000001" not in real("turns")
        assert max(real("turns")) == f"turns/{turns.KEPT + 4:08d}"

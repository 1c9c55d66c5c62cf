"""In a job of many ranks rank 0 decides for all, all export together, and none waits for one that has given up."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.config import Settings
from infra.errors import ConfigError, StoreError
from infra.model import EvalPoint
from tests.services.ports import free_port
from tests.services.ranks import on_ranks
from tests.trainer_integration.conftest import SUITE
from trainer_integration.desk import Admission
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.sharded.ranks import Ranks

T_S = 8  # of the control group: what waits for it shows
pytestmark = pytest.mark.slow
FAILS_AT, CRASHES_AT = 20, 40


class Parts:
    """A collective exporter: every rank writes its own part; rank 1 fails at the second export."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.calls = ranks, 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        if self.calls == FAILS_AT // 10 and self.ranks.rank == 1:
            raise OSError(28, "No space left on device")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{self.ranks.rank}").write_text("weights")


def settings(home: Path, **changes: Any) -> Settings:
    """Prefect is away, so that what was submitted stays in the outbox to be looked at."""
    return Settings(home=home, staging_dir=home / "staging", prefect_api_url=f"http://127.0.0.1:{free_port()}/api", **changes)


def job(rank: int, home: Path) -> tuple[list[str | None], int]:
    """What `on_step` said of each due step on this rank, and how often it exported."""
    export = Parts(Ranks.of_job())
    dispatch = DispatchSettings(run="run", suite=SUITE, every=10, max_in_flight=2, overflow_policy="skip")
    dispatcher = EvalDispatcher(dispatch, settings(home), export)
    said: list[str | None] = []
    for step, final in ((5, False), (10, False), (20, False), (30, False), (40, False), (40, True)):
        done = dispatcher.on_step(step, final=final)
        said.append(None if done is None else (done.skipped or "submitted"))
    dispatcher.close()
    return said, export.calls


def refused(rank: int, home: Path) -> str:
    (home / "file").write_text("in the way")
    dispatch = DispatchSettings(run="run", suite=SUITE, every=10)
    try:
        EvalDispatcher(dispatch, settings(home, store_url=(home / "file" / "store").as_uri()), Parts(Ranks.of_job()))
    except StoreError as error:
        return str(error)
    return ""


def test_rank_0_decides_all_export_together_and_a_failure_on_one_rank_is_a_skipped_point(tmp_path: Path) -> None:
    (first, exports), (second, others) = on_ranks(2, job, tmp_path)
    assert first == [None, "submitted", "export_failed", "submitted", "busy", "submitted"]
    assert second == [None] * 6
    assert exports == others == 4  # not for `busy`, and again for the final point, which is never skipped
    asked = [json.loads(file.read_text()) for file in sorted((tmp_path / "outbox").glob("*.json"))]
    staged = [Path(each["parameters"]["request"]["source"]["path"]) for each in asked if each["skip"] is None]
    assert [sorted(file.name for file in folder.iterdir()) for folder in staged] == [["part-0", "part-1"]] * 3
    assert {each["skip"]["reason"]: each["skip"]["message"] for each in asked if each["skip"]} == {
        "export_failed": "StagingFailed: the model could not be staged, rank 1: OSError: [Errno 28] No space left on device",
        "busy": "2 points in flight, max_in_flight is 2",
    }
    assert len(list((tmp_path / "staging").glob("staged/*/*"))) == 3


def test_settings_that_rank_0_refuses_are_refused_on_every_rank(tmp_path: Path) -> None:
    said = on_ranks(2, refused, tmp_path)
    assert said[0] == said[1]
    assert "file/store" in said[0]


@contextmanager
def outbox_unwritable(home: Path, rank: int) -> Iterator[None]:
    """On rank 0's disk, for as long as it lasts."""
    if rank == 0:
        (home / "outbox").rename(home / "away")
        (home / "outbox").write_text("in the way")
    yield
    if rank == 0:
        (home / "outbox").unlink()
        (home / "away").rename(home / "outbox")


def dispatcher_of(home: Path, *, timeout_s: float = T_S, **changes: Any) -> EvalDispatcher:
    ranks = Ranks.of_job(timeout=datetime.timedelta(seconds=timeout_s))
    dispatch = DispatchSettings(**{"run": "run", "suite": SUITE, "every": 10, "max_in_flight": 9, **changes})
    return EvalDispatcher(dispatch, settings(home), lambda folder: None, ranks=ranks)


def no_thread(*_: object) -> EvalPoint:
    raise RuntimeError("can't start new thread")


def troubled(rank: int, home: Path, trouble: str) -> tuple[list[str | None], bool]:
    """What the first rank said of the points during and after `trouble`, and whether it was said within seconds."""
    started, said = time.monotonic(), list[str | None]()
    if trouble == "home unusable":
        if rank == 0:
            (home / "outbox").write_text("in the way")
        try:
            dispatcher_of(home)
        except ConfigError as error:
            said.append(f"refused: {str(home) in str(error)}")
        if rank == 0:
            (home / "outbox").unlink()
    dispatcher = dispatcher_of(home)
    if trouble == "outbox unwritable":
        with outbox_unwritable(home, rank):
            done = dispatcher.on_step(10)
        said.append("none" if done is None else done.skipped)
    elif trouble == "nothing decided":
        if rank == 0:
            point_of, dispatcher.desk.point_of = dispatcher.desk.point_of, no_thread  # type: ignore[method-assign,assignment]
        done = dispatcher.on_step(10)
        if rank == 0:
            dispatcher.desk.point_of = point_of  # type: ignore[method-assign]
        said.append("none" if done is None else done.skipped)
    elif trouble == "odd step":
        odd: Any = 10.5
        said.append("none" if dispatcher.evaluate(odd) is dispatcher.on_step(-3) is None else "a point")
    done = dispatcher.on_step(10, final=True)
    said.append(None if done is None else f"{done.point.step} {done.skipped}")
    dispatcher.close()
    return said, time.monotonic() - started < T_S


@pytest.mark.parametrize(
    ("trouble", "said", "elsewhere"),
    [
        ("outbox unwritable", "crashed", "none"),
        ("home unusable", "refused: True", "refused: True"),
        ("nothing decided", "none", "none"),
        ("odd step", "none", "none"),
    ],
)
def test_trouble_of_rank_0_keeps_no_rank_waiting_and_the_next_point_is_made(
    tmp_path: Path, trouble: str, said: str, elsewhere: str
) -> None:
    first, second = on_ranks(2, troubled, tmp_path, trouble, timeout_s=90)
    assert first == ([said, "10 None"], True)
    assert second == ([elsewhere, None], True)


def on_nodes_of_their_own(rank: int, home: Path) -> list[str]:
    """What is staged on this rank's node after rank 0 could not submit it."""
    export = Parts(Ranks.of_job())
    dispatch = DispatchSettings(run="run", suite=SUITE, every=10)
    dispatcher = EvalDispatcher(dispatch, settings(home), export)
    own = home / f"node-{rank}"

    def staged(folder: Path) -> None:
        export(own)

    dispatcher.export = staged
    if rank == 0:
        dispatcher.desk.submit = no_thread  # type: ignore[assignment,method-assign]
    told = dispatcher._told

    def of_this_node(value: Any) -> Any:
        found = told(value)
        return replace(found, folder=own) if isinstance(found, Admission) else found

    dispatcher._told = of_this_node  # type: ignore[method-assign]
    dispatcher.on_step(10)
    dispatcher.close()
    return [str(export.calls), *(file.name for file in own.glob("*"))]


def test_every_rank_frees_its_own_part_of_what_was_not_submitted(tmp_path: Path) -> None:
    assert on_ranks(2, on_nodes_of_their_own, tmp_path, timeout_s=90) == [["1"], ["1"]]


def pressed(rank: int, home: Path) -> list[str | None]:
    dispatcher = dispatcher_of(home, timeout_s=8, max_in_flight=1, backpressure_timeout_s=16)
    done = [dispatcher.on_step(step) for step in (10, 20, 30)]
    dispatcher.close()
    return [None if each is None else each.skipped or "submitted" for each in done]


def test_rank_0_waits_for_room_no_longer_than_the_others_wait_for_it(tmp_path: Path) -> None:
    assert on_ranks(2, pressed, tmp_path, timeout_s=90) == [["submitted", "busy", "busy"], [None] * 3]


def alone(rank: int, home: Path) -> tuple[list[str | None], float]:
    """Rank 1 is gone after the first point; how long rank 0 took for those after the one that showed it."""
    dispatcher = dispatcher_of(home, timeout_s=6)
    said, started = [dispatcher.on_step(10)], 0.0
    if rank == 0:
        said.append(dispatcher.on_step(20))
        started = time.monotonic()
        said += [dispatcher.on_step(step) for step in (30, 40)]
    else:
        time.sleep(12)
    taken = time.monotonic() - started
    dispatcher.close()
    return [None if each is None else each.skipped or "submitted" for each in said], taken


def test_ranks_that_have_lost_each_other_wait_once_and_record_what_is_due(tmp_path: Path) -> None:
    (said, taken), _ = on_ranks(2, alone, tmp_path, timeout_s=90)
    assert said == ["submitted", "crashed", "crashed", "crashed"]
    assert taken < 3
    assert len(list((tmp_path / "staging").glob("staged/*/*"))) == 1  # of the first point

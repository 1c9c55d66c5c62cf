"""A point that was decided on has its file before the trainer goes on, and loses it only when Prefect has taken the point."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from infra.model import EvalPoint
from tests.infra.examples import POINT, SKIPPED, request
from tests.services.waiting import until
from trainer_integration.intents import Intent
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox

KILLED_WRITER = """
import os, pathlib, sys
from tests.infra.examples import request
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox
pathlib.Path.rename = lambda *_: os.kill(os.getpid(), 9)
Outbox(pathlib.Path(sys.argv[1])).put(Delivery.of(request(), DEPLOYMENT))
"""


def delivery(step: int = 10) -> Delivery:
    return Delivery.of(request(EvalPoint(run="run", step=step)), DEPLOYMENT)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox")


def steps(outbox: Outbox) -> list[int]:
    return [d.parameters["request"]["point"]["step"] for _, d in outbox.pending()]


def test_what_was_put_is_pending_for_whoever_opens_the_folder_next(outbox: Outbox) -> None:
    outbox.put(delivery())
    ((_, found),) = Outbox(outbox.folder).pending()
    assert found == delivery()
    assert len(Outbox(outbox.folder)) == 1


def test_deliveries_are_pending_in_order_of_creation(outbox: Outbox) -> None:
    for step in (30, 10, 20):
        outbox.put(delivery(step))
    assert steps(outbox) == [30, 10, 20]


def test_a_record_that_a_crash_left_partial_is_not_pending(outbox: Outbox) -> None:
    crashed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(outbox.folder)], check=False)
    assert crashed.returncode == -9
    assert [file.suffix for file in outbox.folder.iterdir()] == [".partial"]
    assert steps(outbox) == []
    outbox.put(delivery())
    assert steps(outbox) == [10]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"deployment": "a/b"}',
        delivery().model_copy(update={"skip": SKIPPED}).model_dump_json().replace('"step":10', '"step":-1').encode(),
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside_and_does_not_block_the_others(outbox: Outbox, content: bytes) -> None:
    bad = outbox.folder / "0-unreadable.json"
    bad.write_bytes(content)
    outbox.put(delivery())
    assert steps(outbox) == [10]
    assert bad.with_suffix(".unreadable").read_bytes() == content
    assert len(outbox) == 1


def test_a_file_that_is_set_aside_is_named_in_the_log_and_by_whoever_delivers(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    (outbox.folder / "0.json").write_bytes(b"")
    assert steps(outbox) == []
    assert "0.json can't be read and is kept as .unreadable, a point may be lost" in caplog.text
    assert outbox.unread() == [outbox.folder / "0.unreadable"]


def test_the_point_of_a_file_that_is_no_delivery_is_skipped_as_crashed_if_it_can_be_made_out(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    written = json.loads(delivery().model_dump_json())
    del written["name"]
    (outbox.folder / "0.json").write_text(json.dumps(written))
    for _ in range(2):  # what is found at once stays
        ((file, found),) = outbox.pending()
        assert (file.name, found.idempotency_key) == ("0.json", delivery().idempotency_key)
        assert found.skip is not None
        assert (found.skip.reason, found.skip.point.step, "0.json" in found.skip.message) == ("crashed", 10, True)
    assert json.loads((outbox.folder / "0.unreadable").read_text()) == written
    assert "its point is skipped as crashed" in caplog.text


def test_a_file_of_a_newer_version_is_left_for_it_and_said_once(outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    newer = outbox.folder / "0.json"
    newer.write_text(json.dumps(json.loads(delivery().model_dump_json()) | {"priority": 1}))
    assert steps(outbox) == steps(outbox) == []
    assert (newer.exists(), outbox.unread()) == (True, [newer])
    assert caplog.text.count("a newer version of Pinpoint wrote it") == 1


def test_a_file_that_another_process_has_delivered_meanwhile_is_passed_over(outbox: Outbox) -> None:
    outbox.put(delivery(10))
    outbox.put(delivery(20))
    pending = outbox.pending()
    next(pending)
    sorted(outbox.folder.glob("*.json"))[1].unlink()
    assert list(pending) == []


def test_many_threads_may_put_at_once(outbox: Outbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda step: outbox.put(delivery(step)), range(40)))
    assert sorted(steps(outbox)) == list(range(40))


def test_the_same_point_always_has_the_same_key_and_others_have_others() -> None:
    assert delivery().idempotency_key == delivery().idempotency_key
    points = [POINT, replace(POINT, step=11), replace(POINT, attempt=1), replace(POINT, run="b")]
    assert len({Delivery.of(request(point), DEPLOYMENT).idempotency_key for point in points}) == 4


def test_the_same_point_of_another_store_or_an_emptied_one_has_another_key() -> None:
    stores = ("file:///store", "file:///store/", "file:///a/../store", "file:///other", "s3://bucket/store")
    keys = [Delivery.of(request(store_url=url), DEPLOYMENT).idempotency_key for url in stores]
    assert (len({*keys[:3]}), len({*keys})) == (1, 3)
    assert Delivery.of(request(), DEPLOYMENT, origin="another").idempotency_key not in keys
    assert all(key.startswith("evaluate/run/step00000010-a0/suite/") for key in keys)


def test_a_skip_is_tagged_with_its_reason() -> None:
    skipped = Delivery.of(request(), DEPLOYMENT, SKIPPED)
    assert skipped.tags == ("run:run", "step:10", "suite:suite", "skipped:busy")
    assert delivery().tags == ("run:run", "step:10", "suite:suite")


def test_a_full_disk_costs_no_point_that_can_be_made_out_nor_the_others(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = json.loads(delivery().model_dump_json())
    del written["name"]
    (outbox.folder / "0.json").write_text(json.dumps(written))
    outbox.put(delivery(20))

    def full(*_: object, **__: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(outbox, "put", full)
        assert steps(outbox) == [20]
    skipped = [found.skip.point.step for _, found in outbox.pending() if found.skip]
    assert (skipped, steps(outbox)) == ([10], [10, 20])


@pytest.mark.parametrize("fails", ["unlink", "close"])
def test_an_end_of_an_intent_that_fails_or_hangs_holds_up_nobody(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    skip = delivery().model_copy(update={"skip": SKIPPED})
    intent, released = Intent(outbox, skip), threading.Event()
    descriptor, close = intent._descriptor, os.close

    def failing(given: int) -> None:
        close(given)
        if given == descriptor:
            raise OSError(errno.EIO, "Input/output error")

    if fails == "close":
        monkeypatch.setattr(os, "close", failing)
    else:
        intent._wait_s = 0.1
        monkeypatch.setattr(Path, "unlink", lambda *_, **__: released.wait(20))
    started = time.monotonic()
    intent.fulfilled()
    assert time.monotonic() - started < 5
    released.set()
    until(lambda: intent._descriptor == -1)

"""A file of the outbox is made before it is needed and synced after it was written: training waits for neither."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.model import EvalPoint
from tests.infra.examples import SKIPPED, request
from tests.services.waiting import until
from tests.trainer_integration.conftest import PROMPT_S
from trainer_integration import blank_files
from trainer_integration.blank_files import BlankFiles, give_name, write_whole
from trainer_integration.intents import Intent, settle_left
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox

DELIVERY = Delivery.of(request(EvalPoint(run="run", step=10)), DEPLOYMENT)
SKIP = Delivery.of(request(), DEPLOYMENT, SKIPPED)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    made = Outbox(tmp_path / "outbox")
    yield made
    made.files.close(5)


def prepared(outbox: Outbox) -> Outbox:
    outbox.files.prepare()
    until(lambda: len(outbox.files._ready) == blank_files.BLANKS)
    return outbox


class Syncs:
    """What was synced, in order; it can be held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inodes: list[int] = []
        self.free, self.begun, self._sync = threading.Event(), threading.Event(), os.fsync
        self.fails: OSError | None = None
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        self.begun.set()
        assert self.free.wait(20)
        if self.fails is not None:
            raise self.fails
        self._sync(descriptor)
        self.inodes.append(os.fstat(descriptor).st_ino)


def test_what_was_put_has_its_name_at_once_and_is_synced_with_it_later(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs, started = Syncs(monkeypatch), time.monotonic()
    file = prepared(outbox).put(DELIVERY)
    assert time.monotonic() - started < PROMPT_S
    assert [found for _, found in outbox.pending()] == [DELIVERY]
    assert syncs.inodes == []
    syncs.free.set()
    until(lambda: syncs.inodes == [file.stat().st_ino, outbox.folder.stat().st_ino])


def test_who_closes_waits_for_what_is_to_be_synced(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    syncs.free.set()
    files = [outbox.put(DELIVERY).stat().st_ino for _ in range(3)]
    outbox.files.close(10)
    folder = outbox.folder.stat().st_ino
    assert [inode for inode in syncs.inodes if inode != folder] == files
    assert syncs.inodes[-1] == folder


def test_many_files_are_synced_with_their_folder_at_once_and_few_are_held_open(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    first = outbox.put(DELIVERY)
    assert syncs.begun.wait(20)  # and it is held up
    before = len(os.listdir("/proc/self/fd"))
    files = [first, *(outbox.put(DELIVERY) for _ in range(5 * blank_files.HELD))]
    assert len(os.listdir("/proc/self/fd")) <= before + blank_files.HELD
    files[-1].unlink()  # delivered before it was synced
    syncs.free.set()
    inodes = [file.stat().st_ino for file in files[:-1]]
    until(lambda: len(syncs.inodes) == len(inodes) + 2)
    folder = outbox.folder.stat().st_ino
    assert [inode for inode in syncs.inodes if inode != folder] == inodes


def test_what_can_not_be_synced_is_said_and_delivered_all_the_same(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    syncs = Syncs(monkeypatch)
    syncs.fails = OSError(errno.EIO, "Input/output error")
    syncs.free.set()
    file = outbox.put(DELIVERY)
    until(lambda: f"{file.name} would not outlive a loss of power" in caplog.text)
    assert len(outbox) == 1


@pytest.mark.parametrize("ready", [True, False], ids=["prepared", "not prepared"])
def test_a_file_is_the_same_whether_it_was_made_before_or_not(outbox: Outbox, ready: bool) -> None:
    files = prepared(outbox).files if ready else BlankFiles(outbox.folder)
    partial, file = outbox.folder / "1.partial", outbox.folder / "1.json"
    descriptor = files.take(partial)
    assert partial.exists() != ready
    for part in (b"one", b"two"):
        write_whole(descriptor, part)
    give_name(descriptor, partial, file)
    os.close(descriptor)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode) & 0o600) == (b"onetwo", 0o600)
    assert [found.name for found in outbox.folder.iterdir()] == ["1.json"]


@pytest.mark.parametrize("lacks", ["_nameless", "_link"])
def test_where_there_are_no_nameless_files_each_is_made_when_it_is_needed(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    def none(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(blank_files, lacks, none)
    outbox.files.prepare()
    time.sleep(0.05)
    intent = Intent(outbox, SKIP)
    file = outbox.put(DELIVERY, intent.stem)
    intent.fulfilled()
    assert list(outbox.folder.iterdir()) == [file]


def test_an_intent_is_not_locked_by_a_process_that_was_forked_before(outbox: Outbox) -> None:
    prepared(outbox)
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        intent = Intent(outbox, SKIP)
        assert settle_left(outbox) == []
        intent.given_up()
        assert [left.skip for left in settle_left(outbox)] == [SKIPPED]
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@contextmanager
def forked(then: Callable[[], object] = lambda: None) -> Iterator[None]:
    """A child that does `then`, and then nothing, until the body ends."""
    done, ended = os.pipe()
    child = os.fork()
    if child == 0:
        then()
        os.write(ended, b"1")
        time.sleep(30)
        os._exit(0)
    try:
        os.read(done, 1)
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(done)
        os.close(ended)


def test_an_intent_that_is_held_at_a_fork_is_the_parents_alone(outbox: Outbox) -> None:
    intent = Intent(outbox, SKIP)
    with forked():
        assert settle_left(outbox) == []
        os.close(intent._descriptor)  # as the kernel does when a process is killed
        intent._descriptor = -1
        assert [left.skip for left in settle_left(outbox)] == [SKIPPED]


def test_an_intent_is_let_go_of_though_a_child_that_python_did_not_fork_has_it_open(outbox: Outbox) -> None:
    intent = Intent(outbox, SKIP)
    shared = os.dup(intent._descriptor)  # of the same open file, as a child's
    intent.given_up()
    assert [left.skip for left in settle_left(outbox)] == [SKIPPED]
    os.close(shared)


def test_a_forked_process_writes_into_files_of_its_own(outbox: Outbox) -> None:
    prepared(outbox)
    with forked(lambda: outbox.put(DELIVERY)):
        outbox.put(DELIVERY)
        assert [found for _, found in outbox.pending()] == [DELIVERY] * 2
    assert outbox.unread() == []


def test_a_forked_process_syncs_what_it_wrote_itself(outbox: Outbox) -> None:
    prepared(outbox)

    def put_and_sync() -> None:
        outbox.put(DELIVERY)
        outbox.files.close(5)
        (outbox.folder / "synced").touch()

    with forked(put_and_sync):
        assert (outbox.folder / "synced").exists()


def test_an_intent_that_was_made_before_is_locked_when_it_has_its_name(outbox: Outbox) -> None:
    intent = Intent(prepared(outbox), SKIP)
    with intent.file.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    intent.fulfilled()


def test_blank_files_leave_nothing_in_the_folder_and_end_with_their_owner(tmp_path: Path) -> None:
    outbox = prepared(Outbox(tmp_path / "outbox"))
    assert list(outbox.folder.iterdir()) == []
    thread, ready = outbox.files._thread, outbox.files._ready
    del outbox
    assert thread is not None
    thread.join(5)
    assert (thread.is_alive(), len(ready)) == (False, 0)

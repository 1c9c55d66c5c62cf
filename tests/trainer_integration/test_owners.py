"""A trainer's deliveries are its own as long as it lives: others leave them alone, unless they speak to the same Prefect."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.config import Settings
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import request
from tests.services.waiting import until
from tests.trainer_integration.conftest import SUITE, Trainer
from trainer_integration.deliver import deliver_left
from trainer_integration.desk import Desk
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox
from trainer_integration.owners import Owner, lives


@contextmanager
def other_trainer(trainer: Trainer, api_url: str) -> Iterator[EvalDispatcher]:
    settings = trainer.settings.model_copy(update={"prefect_api_url": api_url})
    made = EvalDispatcher(DispatchSettings(run="other", suite=SUITE, every=10), settings, lambda _: None)
    yield made
    made.close()


def die(desk: Desk) -> None:
    """What the kernel does for a process that is killed."""
    owner = desk.submitter.owner
    os.close(owner._descriptor)
    owner._descriptor = -1


def test_a_trainer_leaves_to_another_that_lives_what_is_for_its_prefect_and_takes_it_when_that_is_dead(
    trainer: Trainer, prefect: FakePrefect
) -> None:
    prefect.failing = 503
    first = trainer.start()
    first.on_step(10)
    with FakePrefect() as another:
        settings = trainer.settings.model_copy(update={"prefect_api_url": another.api_url})
        started = time.monotonic()
        assert deliver_left(settings, 5.0).waiting == ()
        assert time.monotonic() - started < 2
        with other_trainer(trainer, another.api_url) as other:
            other.on_step(10)
            until(lambda: another.runs)
            time.sleep(0.2)
            assert (another.names, trainer.outbox) == (["other · step 000010"], [".json"])
            die(first.desk)
            until(lambda: len(another.runs) == 2)
            assert another.names[1] == "run · step 000010"


def test_an_intent_that_a_trainer_gives_up_while_it_lives_goes_to_its_own_prefect(
    trainer: Trainer, prefect: FakePrefect
) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    trainer.export = interrupted  # type: ignore[assignment]
    first = trainer.start()
    with FakePrefect() as another, other_trainer(trainer, another.api_url):
        with pytest.raises(KeyboardInterrupt):
            first.on_step(10)
        until(lambda: prefect.runs)
        assert (prefect.names, another.names) == (["run · step 000010"], [])


def test_what_is_for_the_same_prefect_is_delivered_by_whoever_comes_first(trainer: Trainer, prefect: FakePrefect) -> None:
    prefect.failing = 503
    first = trainer.start()
    first.on_step(10)
    first.desk.submitter._stopping.set()  # it lives, and does nothing any more
    first.desk.submitter._thread.join(5)
    prefect.failing = None
    (delivered,) = deliver_left(trainer.settings, 5.0).delivered
    assert delivered.name == "run · step 000010"


def test_a_file_of_a_version_that_named_no_prefect_is_for_any(tmp_path: Path, prefect: FakePrefect) -> None:
    outbox = Outbox(tmp_path / "outbox")
    old = Delivery.of(request(), DEPLOYMENT).model_dump_json(exclude={"api_url", "owner"})
    (outbox.folder / "1.json").write_text(old)
    settings = Settings(home=tmp_path, prefect_api_url=prefect.api_url)
    assert len(deliver_left(settings, 5.0).delivered) == 1


def test_a_name_lives_as_long_as_it_is_held_and_dead_ones_are_forgotten(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    assert lives(tmp_path, owner.name)
    os.close(owner._descriptor)
    owner._descriptor = -1
    assert not lives(tmp_path, owner.name)
    assert (tmp_path / "owners" / owner.name).exists()
    next_one = Owner(tmp_path)
    assert [file.name for file in (tmp_path / "owners").iterdir()] == [next_one.name]
    next_one.close()
    assert not lives(tmp_path, next_one.name)
    assert list((tmp_path / "owners").iterdir()) == []


def test_a_forked_child_does_not_keep_the_name_of_its_parent_alive(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(done, b"1")
        time.sleep(30)
        os._exit(0)
    try:
        os.read(ready, 1)
        assert lives(tmp_path, owner.name)
        os.close(owner._descriptor)
        owner._descriptor = -1
        assert not lives(tmp_path, owner.name)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_without_file_locks_nothing_is_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    assert Owner(tmp_path).name == ""
    assert "whoever has the same home may deliver what is dispatched here" in caplog.text
    assert list((tmp_path / "owners").iterdir()) == []

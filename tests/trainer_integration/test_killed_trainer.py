"""A trainer that is killed loses no point silently: after the next start, or `pinpoint deliver`, it is evaluated or skipped."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from flows.deliver import deliver_and_tell
from infra import records
from infra.config import Settings
from infra.model import EvalPoint, SkippedPoint
from infra.store import Store
from tests.end_to_end.command import PINPOINT
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import SKIPPED, request
from tests.services.dying_trainer import LAST, PLACES
from tests.services.ports import free_port
from tests.services.waiting import until
from tests.trainer_integration.conftest import SUITE, Trainer
from trainer_integration.deliver import deliver_left
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.intents import Intent, settle_left
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox

ROOT = Path(__file__).parents[2]
POINT = EvalPoint(run="run", step=LAST, final=True, missed=(5,))
EVALUATED = ("put", "intent unlinked", "last step")
NOWHERE = f"http://127.0.0.1:{free_port()}/api"


def command(home: Path, place: str) -> list[str]:
    return [sys.executable, "-m", "tests.services.dying_trainer", str(home), NOWHERE, place]


def kill_at(place: str, home: Path) -> None:
    died = subprocess.run(command(home, place), cwd=ROOT, timeout=60, check=False)
    assert died.returncode == -9


@contextmanager
def at_work(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A trainer that is in the middle of an export until the body ends."""
    process = subprocess.Popen(command(home, "alive"), cwd=ROOT)
    try:
        until(lambda: (home / "staging" / "exporting").exists(), 30)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def next_start(settings: Settings) -> Iterator[EvalDispatcher]:
    made = EvalDispatcher(DispatchSettings(run="run", suite=SUITE, every=5), settings, lambda _: None)
    yield made
    made.close()


def settings_of(home: Path, api_url: str) -> Settings:
    return Settings(home=home, staging_dir=home / "staging", prefect_api_url=api_url)


def deliver(home: Path, api_url: str, wait_s: str) -> subprocess.CompletedProcess[str]:
    staging = str(home / "staging")
    where = {"PINPOINT_HOME": str(home), "PINPOINT_STAGING_DIR": staging, "PINPOINT_PREFECT_API_URL": api_url}
    return subprocess.run(
        [PINPOINT, "deliver", "--wait", wait_s], capture_output=True, text=True, timeout=60, env=os.environ | where
    )


def assert_evaluated_or_skipped(place: str, settings: Settings, prefect: FakePrefect) -> None:
    """Exactly one flow run has it, and nothing that was staged for a point that will not be evaluated is left."""
    assert prefect.names == ["run · step 000010"]
    staged = list(settings.staging_dir.glob("staged/*/*"))
    record = records.find(Store(settings.store), POINT, "suite")
    if place in EVALUATED:
        assert (record, prefect.runs[0].state["name"], len(staged)) == (None, "Scheduled", 1)
        return
    assert isinstance(record, SkippedPoint)
    assert (record.reason, record.point, prefect.runs[0].state["name"]) == ("crashed", POINT, "Skipped")
    assert "the trainer ended before it had dispatched the point" in record.message
    assert staged == []


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_after_a_kill_the_next_start_of_the_trainer_loses_no_point(place: str, tmp_path: Path, prefect: FakePrefect) -> None:
    kill_at(place, tmp_path)
    settings = settings_of(tmp_path, prefect.api_url)
    with next_start(settings) as dispatcher:
        until(lambda: prefect.runs and not list((tmp_path / "outbox").glob("*.[ji]*")))
        assert_evaluated_or_skipped(place, settings, prefect)
        assert dispatcher.desk.attempt == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["exporting", "last step"])
def test_pinpoint_deliver_does_it_without_a_trainer_and_says_what_it_did(
    place: str, tmp_path: Path, prefect: FakePrefect
) -> None:
    kill_at(place, tmp_path)
    done = deliver(tmp_path, prefect.api_url, "20")
    assert done.returncode == 0, done.stderr
    assert "delivered: run · step 000010" in done.stdout
    lost = int(place == "exporting")
    assert ("as skipped, crashed: the trainer ended" in done.stdout) == bool(lost)
    assert f"1 delivered, 0 refused, 0 still waiting; {lost} were lost by a trainer that was killed." in done.stdout
    assert_evaluated_or_skipped(place, settings_of(tmp_path, prefect.api_url), prefect)


@pytest.mark.slow
def test_pinpoint_deliver_says_what_still_waits_when_prefect_is_away(tmp_path: Path) -> None:
    kill_at("last step", tmp_path)
    done = deliver(tmp_path, NOWHERE, "1")
    assert done.returncode == 1
    assert "still waiting: run · step 000010" in done.stdout
    assert "try again" in done.stderr


@pytest.mark.slow
def test_the_export_of_a_trainer_that_lives_is_left_alone_until_it_dies(tmp_path: Path, prefect: FakePrefect) -> None:
    settings = settings_of(tmp_path, prefect.api_url)
    with at_work(tmp_path):
        assert deliver_left(settings, 1.0).settled == ()
        with next_start(settings):
            time.sleep(0.3)
        assert len(list(settings.staging_dir.glob("staged/*/*"))) == 1
        assert prefect.runs == []
    (settled,) = deliver_left(settings, 10.0).settled
    assert settled.name == "run · step 000010"
    assert_evaluated_or_skipped("exporting", settings, prefect)


def skip_delivery(trainer: Trainer) -> Delivery:

    return Delivery.of(request(store_url=trainer.store.url), DEPLOYMENT, SKIPPED)


def test_an_intent_that_can_not_be_read_is_set_aside(trainer: Trainer) -> None:
    outbox = Outbox(trainer.settings.home / "outbox")
    (outbox.folder / "1.intent").write_text("half of a rec")
    trainer.start()
    until(lambda: trainer.outbox == [".unreadable"])


def test_one_odd_intent_does_not_stop_the_settling_of_the_others(
    trainer: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(tmp_path / "outbox")
    (outbox.folder / "0.intent").mkdir()
    Intent(outbox, skip_delivery(trainer)).given_up()
    (outbox.folder / "00.intent").write_bytes(b"\xff\n")
    assert [left.skip for left in settle_left(outbox)] == [SKIPPED]
    assert settle_left(outbox) == []
    assert caplog.text.count("0.intent: what a dead trainer left can't be settled: IsADirectoryError") == 1
    assert (outbox.folder / "00.unreadable").exists()


def test_the_point_of_an_intent_that_can_not_be_read_is_skipped_if_it_can_be_made_out(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    line = Delivery.of(request(), DEPLOYMENT, SKIPPED).model_dump_json().replace('"name":"run', '"title":"run')
    (outbox.folder / "1.intent").write_text(f"{line}\n")
    (settled,) = settle_left(outbox)
    assert settled.skip is not None
    assert (settled.skip.reason, [file for file, _ in outbox.pending()]) == ("crashed", [outbox.folder / "1.json"])


def test_pinpoint_deliver_names_what_can_not_be_read_and_fails(trainer: Trainer) -> None:
    outbox, said = Outbox(trainer.settings.home / "outbox"), io.StringIO()
    (outbox.folder / "1.json").touch()
    assert deliver_and_tell(trainer.settings, 1.0, Console(file=said)) is False
    assert f"can't be read: {outbox.folder / '1.unreadable'}" in said.getvalue()
    (outbox.folder / "1.unreadable").unlink()
    assert deliver_and_tell(trainer.settings, 1.0, Console(file=said)) is True


def test_an_interrupted_export_is_a_skipped_point_too_while_the_process_goes_on(trainer: Trainer) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    trainer.export = interrupted  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        trainer.start().on_step(10)
    until(lambda: records.find(trainer.store, EvalPoint(run="run", step=10), "suite"))


@pytest.mark.parametrize("became", [".json", ".refused", ".unreadable"])
def test_a_delivery_that_was_made_beats_the_intent_that_a_crash_left_beside_it(trainer: Trainer, became: str) -> None:
    outbox = Outbox(trainer.settings.home / "outbox")
    intent = Intent(outbox, skip_delivery(trainer))
    intent.given_up()
    made = skip_delivery(trainer).model_copy(update={"skip": None, "tags": ()})
    file = outbox.put(made, stem=intent.stem)
    file = file.rename(file.with_suffix(became))
    assert settle_left(outbox) == []
    assert Delivery.model_validate_json(file.read_text()) == made
    assert trainer.outbox == [became]


def test_a_delivery_that_was_taken_takes_the_intent_along_that_a_crash_left_beside_it(
    trainer: Trainer, prefect: FakePrefect
) -> None:
    outbox = Outbox(trainer.settings.home / "outbox")
    intent = Intent(outbox, skip_delivery(trainer))
    made = skip_delivery(trainer).model_copy(update={"skip": None, "tags": ()})
    outbox.put(made, stem=intent.stem)
    trainer.start()  # it is this process that holds the intent, so that nobody settles it
    until(lambda: prefect.runs and trainer.outbox == [])
    intent.given_up()


def test_without_file_locks_points_are_dispatched_all_the_same(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:

    def none(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    done = trainer.start().on_step(10)
    assert done is not None
    assert done.skipped is None

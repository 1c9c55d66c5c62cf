"""Prefect up, slow, hung, down or restarting: what was decided on is delivered, and ends with a record in the store."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from infra import leases, records
from infra.errors import StoreUnreachable
from infra.model import EvalPoint, SkippedPoint
from infra.snapshot import new_prefix
from infra.staging import TTL, new_staged, stale_staged
from infra.store import Store, path_of
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import POINT, SKIPPED, report_at
from tests.infra.examples import request as example_request
from tests.services.waiting import until
from tests.trainer_integration.conftest import Trainer
from trainer_integration import backoff, in_flight, watch
from trainer_integration.dispatcher import EvalDispatcher
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox, staged_in_outbox


def test_a_due_step_becomes_one_flow_run_with_name_tags_and_request(trainer: Trainer, prefect: FakePrefect) -> None:
    trainer.start().on_step(10)
    until(lambda: prefect.runs)
    body = prefect.runs[0].body
    assert body["name"] == "run · step 000010"
    assert body["tags"] == ["run:run", "step:10", "suite:suite"]
    source, folder = body["parameters"]["request"]["source"], str(trainer.export.folders[0])
    assert (source["path"], source["staged"]) == (folder, True)
    assert source["parts"] == [{"host": socket.gethostname(), "path": folder, "shards": []}]
    assert "state" not in body
    until(lambda: trainer.outbox == [])


def break_(prefect: FakePrefect, how: str) -> None:
    match how:
        case "refusing":
            prefect.stop()
        case "hung":
            prefect.hung = True
        case "503":
            prefect.failing = 503
        case "unregistered":
            prefect.registered = False


def mend(prefect: FakePrefect, how: str) -> None:
    prefect.hung, prefect.failing, prefect.registered = False, None, True
    if how == "refusing":
        prefect.start()


AWAY = ("refusing", "hung", "503", "unregistered")


@pytest.mark.parametrize("how", AWAY)
def test_what_prefect_could_not_take_is_delivered_later_by_the_same_process(
    trainer: Trainer, prefect: FakePrefect, how: str
) -> None:
    break_(prefect, how)
    dispatcher = trainer.start()
    dispatcher.on_step(10)
    dispatcher.on_step(20)
    until(lambda: how == "refusing" or prefect.requests)
    assert trainer.outbox == [".json", ".json"]
    assert prefect.runs == []
    mend(prefect, how)
    until(lambda: len(prefect.runs) == 2)
    assert prefect.names == ["run · step 000010", "run · step 000020"]
    until(lambda: trainer.outbox == [])


def test_what_prefect_could_not_take_is_delivered_later_by_the_next_process(trainer: Trainer, prefect: FakePrefect) -> None:
    prefect.stop()
    first = trainer.start()
    first.on_step(10)
    first.close()
    assert trainer.outbox == [".json"]
    prefect.start()
    trainer.start()
    until(lambda: prefect.names == ["run · step 000010"])
    until(lambda: trainer.outbox == [])


def test_a_delivery_whose_answer_was_lost_makes_no_second_flow_run(trainer: Trainer, prefect: FakePrefect) -> None:
    first = trainer.start()
    first.on_step(10)
    until(lambda: trainer.outbox == [])
    first.close()
    request = prefect.runs[0].body
    assert first.desk.submitter.outbox.folder.exists()
    dispatcher = trainer.start()
    dispatcher.desk.attempt = 0  # the same point once more
    dispatcher.on_step(10)
    until(lambda: len([r for r in prefect.requests if r[1].endswith("create_flow_run")]) >= 2)
    until(lambda: trainer.outbox == [])
    assert [run.body for run in prefect.runs] == [request]


def test_what_prefect_refuses_is_set_aside_and_its_point_ends_as_crashed(trainer: Trainer, prefect: FakePrefect) -> None:
    prefect.refusing = 409
    dispatcher = trainer.start()
    dispatcher.on_step(10)
    assert dispatcher.drain(5)
    (record,) = dispatcher.records
    assert isinstance(record, SkippedPoint)
    assert (record.reason, record.point.step) == ("crashed", 10)
    assert "Prefect answered 409" in record.message
    assert trainer.outbox == [".refused"]
    assert trainer.staged == []


def test_an_unreadable_record_does_not_block_the_others(trainer: Trainer, prefect: FakePrefect) -> None:
    dispatcher = trainer.start()
    (trainer.settings.home / "outbox" / "0.json").write_text("{")
    dispatcher.on_step(10)
    until(lambda: len(prefect.runs) == 1)
    until(lambda: trainer.outbox == [".unreadable"])


def leave(trainer: Trainer, point: EvalPoint, *, deployment: str = DEPLOYMENT, **changes: Any) -> Path:
    """What a trainer that ended leaves: a staged model and a delivery of it in the outbox."""
    folder = new_staged(trainer.settings.staging_dir, point, 3600)
    request = example_request(point, staged=str(folder), **{"store_url": trainer.store.url, **changes})
    Outbox(trainer.settings.home / "outbox").put(Delivery.of(request, deployment))
    return folder


OTHER = EvalPoint(run="other", step=1)
FAULTS: dict[str, Callable[[Trainer, FakePrefect, Path], None]] = {}


def fault(make: Callable[[Trainer, FakePrefect, Path], None]) -> Callable[[Trainer, FakePrefect, Path], None]:
    FAULTS[make.__name__] = make
    return make


@fault
def unknown_deployment(trainer: Trainer, prefect: FakePrefect, tmp_path: Path) -> None:
    prefect.unknown = {"gone/gone"}
    leave(trainer, OTHER, deployment="gone/gone")


@fault
def no_such_kind_of_store(trainer: Trainer, prefect: FakePrefect, tmp_path: Path) -> None:
    leave_skip(trainer, "gs://bucket/store")


@fault
def store_that_cannot_be_written(trainer: Trainer, prefect: FakePrefect, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    leave_skip(trainer, (tmp_path / "file" / "store").as_uri())


@fault
def damaged_record(trainer: Trainer, prefect: FakePrefect, tmp_path: Path) -> None:
    trainer.store.write(records.record_key(OTHER, "suite"), b"{")
    leave_skip(trainer, trainer.store.url)


def leave_skip(trainer: Trainer, store_url: str) -> None:
    delivery = Delivery.of(example_request(OTHER, store_url=store_url), DEPLOYMENT, replace(SKIPPED, point=OTHER))
    Outbox(trainer.settings.home / "outbox").put(delivery)


@pytest.mark.parametrize("name", FAULTS)
def test_a_delivery_that_nobody_will_take_holds_up_no_other_and_draining_does_not_wait_for_it(
    trainer: Trainer, prefect: FakePrefect, tmp_path: Path, name: str
) -> None:
    FAULTS[name](trainer, prefect, tmp_path)
    dispatcher = trainer.start(max_in_flight=1, overflow_policy="skip")
    dispatcher.on_step(10)
    dispatcher.on_step(20)
    until(lambda: sorted(prefect.names) == ["run · step 000010", "run · step 000020"])
    records.commit(trainer.store, report_at(10))
    assert dispatcher.drain(5)
    assert sorted(record.point.step for record in dispatcher.records) == [10, 20]
    assert trainer.outbox == [".json"]


def test_a_failing_delivery_pauses_longer_and_longer(
    trainer: Trainer, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 60.0)
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 0.2)
    prefect.unknown = {"gone/gone"}
    leave(trainer, OTHER, deployment="gone/gone")
    asked, answer = list[float](), prefect.answer

    def noted(*request: Any) -> Any:
        asked.append(time.monotonic())
        return answer(*request)

    monkeypatch.setattr(prefect, "answer", noted)
    trainer.start()
    until(lambda: len(asked) >= 4)
    pauses = [second - first for first, second in pairwise(asked[:4])]
    assert [pause >= least for pause, least in zip(pauses, (0.2, 0.4, 0.8), strict=True)] == [True] * 3


@pytest.mark.parametrize("how", ["refused", "crashed"])
def test_a_point_that_an_earlier_process_left_ends_with_a_record_too_and_is_none_of_this_trainers(
    trainer: Trainer, prefect: FakePrefect, how: str
) -> None:
    prefect.refusing = 409 if how == "refused" else None
    folder = leave(trainer, OTHER)
    dispatcher = trainer.start(max_in_flight=1, overflow_policy="skip")
    if how == "crashed":
        until(lambda: prefect.runs)
        assert dispatcher.desk.submitter.watch.in_flight == 0
        prefect.runs[0].end("Crashed")
    until(lambda: records.find(trainer.store, OTHER, "suite"))
    record = records.find(trainer.store, OTHER, "suite")
    assert isinstance(record, SkippedPoint)
    assert (record.reason, how in record.message.lower()) == ("crashed", True)
    until(lambda: not folder.exists())
    assert dispatcher.records == []


def test_a_point_that_an_earlier_process_left_is_looked_for_in_its_own_store(
    trainer: Trainer, prefect: FakePrefect, tmp_path: Path
) -> None:
    elsewhere = Store((tmp_path / "elsewhere").as_uri())
    folder = leave(trainer, OTHER, store_url=elsewhere.url)
    trainer.start()
    until(lambda: prefect.runs)
    prefect.runs[0].end("Crashed")
    until(lambda: records.find(elsewhere, OTHER, "suite"))
    until(lambda: not folder.exists())
    assert records.history(trainer.store, "other") == []


def test_a_request_of_another_version_is_delivered_all_the_same(trainer: Trainer, prefect: FakePrefect) -> None:
    made = Delivery.of(example_request(OTHER, store_url=trainer.store.url), DEPLOYMENT)
    Outbox(trainer.settings.home / "outbox").put(made.model_copy(update={"parameters": {"request": {"new": 1}}}))
    dispatcher = trainer.start()
    dispatcher.on_step(10)
    until(lambda: prefect.names == ["other · step 000001", "run · step 000010"])


def test_a_report_in_the_store_ends_the_point_and_leaves_the_staged_folder_to_its_flow(
    trainer: Trainer, prefect: FakePrefect
) -> None:
    dispatcher = trainer.start()
    dispatcher.on_step(10)
    records.commit(trainer.store, report_at(10))
    assert dispatcher.drain(5)
    assert dispatcher.records == [report_at(10)]
    assert len(trainer.staged) == 1


@pytest.mark.parametrize("state", ["Crashed", "Failed", "Cancelled", "Completed"])
def test_a_flow_run_that_ended_without_a_record_becomes_a_skip_and_what_it_owned_is_freed(
    trainer: Trainer, prefect: FakePrefect, state: str
) -> None:
    dispatcher = trainer.start()
    dispatched = dispatcher.on_step(10)
    assert dispatched is not None
    until(lambda: prefect.runs)
    prefix = new_prefix(POINT)
    leases.acquire(trainer.store, prefix, owner=leases.owner_of(POINT), purpose="export")
    trainer.store.write(f"{prefix}/model.safetensors", b"half an export")
    prefect.runs[0].end(state)
    assert dispatcher.drain(5)
    (record,) = dispatcher.records
    assert isinstance(record, SkippedPoint)
    assert record.reason == "crashed"
    assert state in record.message
    assert record.export_time_seconds == dispatched.export_time_seconds > 0
    assert records.find(trainer.store, POINT, "suite") == record
    assert trainer.staged == []
    assert trainer.store.list("snapshots") == {}


def test_a_crashed_flow_run_that_begins_again_is_waited_for(
    trainer: Trainer, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its runner has a killed one do; a record made meanwhile would be the point's, whatever the second start measured."""
    monkeypatch.setattr(watch, "RECORD_GRACE_S", 60.0)
    dispatcher = trainer.start()
    dispatcher.on_step(10)
    until(lambda: in_flight_of(dispatcher).flow_run_id is not None)
    prefect.runs[0].end("Crashed")
    until(lambda: in_flight_of(dispatcher).ended_at is not None)
    prefect.runs[0].end("Running")
    until(lambda: in_flight_of(dispatcher).ended_at is None)
    monkeypatch.setattr(watch, "RECORD_GRACE_S", 0.0)
    looks = len(prefect.requests) + 5
    until(lambda: len(prefect.requests) > looks)
    assert dispatcher.records == []
    assert len(trainer.staged) == 1
    records.commit(trainer.store, report_at(10))
    assert dispatcher.drain(5)
    assert dispatcher.records == [report_at(10)]


def test_a_record_that_is_seen_late_is_kept_and_not_overwritten(trainer: Trainer, prefect: FakePrefect) -> None:
    dispatcher = trainer.start()
    dispatcher.on_step(10)
    until(lambda: prefect.runs)
    prefect.runs[0].end("Completed")
    records.commit(trainer.store, report_at(10))
    assert dispatcher.drain(5)
    assert dispatcher.records == [report_at(10)]


@pytest.mark.parametrize("how", [*AWAY, "running", "forgotten"])
def test_a_point_without_a_record_at_its_deadline_ends_as_timeout_whatever_prefect_does(
    trainer: Trainer, prefect: FakePrefect, how: str
) -> None:
    if how in AWAY:
        break_(prefect, how)
    dispatcher = trainer.start(deadline_s=0.1)
    dispatcher.on_step(10)
    if how == "forgotten":
        until(lambda: prefect.runs)
        prefect.forgets = True
    until(lambda: dispatcher.records)
    (record,) = dispatcher.records
    assert isinstance(record, SkippedPoint)
    assert record.reason == "timeout"
    assert trainer.staged == []
    assert dispatcher.desk.submitter.watch.in_flight == 0


def test_a_flow_that_waits_in_the_queue_has_its_own_deadline_before_the_thread_gives_the_point_up(
    trainer: Trainer, prefect: FakePrefect
) -> None:
    dispatcher, started = trainer.start(deadline_s=0.5), time.monotonic()
    dispatcher.on_step(10)
    until(lambda: dispatcher.records)
    assert time.monotonic() - started > 2 * 0.5
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(in_flight, "QUEUE_GRACE_S", 60.0)
        assert in_flight.last_resort_s(3600) == 7260


def test_a_staged_model_is_not_stale_before_its_point_is_given_up(trainer: Trainer) -> None:
    trainer.start(deadline_s=10).on_step(10)
    (ttl,) = trainer.settings.staging_dir.glob("staged/run/*/ttl")
    assert float(ttl.read_text()) == in_flight.last_resort_s(10)


def test_the_record_of_a_skip_reaches_the_store_once_also_while_prefect_is_away(trainer: Trainer, prefect: FakePrefect) -> None:
    prefect.failing = 503
    dispatcher = trainer.start(max_in_flight=1, overflow_policy="skip")
    dispatcher.on_step(10)
    dispatcher.on_step(20)
    skipped = EvalPoint(run="run", step=20)
    until(lambda: records.find(trainer.store, skipped, "suite"))
    asked = len(prefect.requests)
    until(lambda: len(prefect.requests) > asked + 1)
    assert [record.point.step for record in dispatcher.records] == [20]
    prefect.failing = None
    until(lambda: len(prefect.runs) == 2)
    assert prefect.runs[1].state == {"type": "COMPLETED", "name": "Skipped"}


def test_how_far_the_trainer_is_reaches_the_store(trainer: Trainer, prefect: FakePrefect) -> None:
    dispatcher = trainer.start()
    prefect.stop()
    for step in range(1, 13):
        dispatcher.on_step(step)
    until(lambda: records.read_progress(trainer.store, "run", 0) == 12)
    dispatcher.on_step(13)
    dispatcher.close()
    assert records.read_progress(trainer.store, "run", 0) == 13


def test_a_restarted_run_counts_lag_from_its_own_progress_also_at_its_baseline(trainer: Trainer, prefect: FakePrefect) -> None:
    first = trainer.start()
    first.on_step(12)
    first.close()
    again = trainer.start(start_step=5)
    again.baseline()
    until(lambda: records.read_progress(trainer.store, "run", 1) == 5)
    assert records.read_progress(trainer.store, "run", 0) == 12


def test_a_final_point_with_an_attempt_of_its_own_has_progress_too(trainer: Trainer) -> None:
    dispatcher = trainer.start(max_in_flight=1, overflow_policy="skip")
    for step, final in ((10, False), (20, False), (20, True)):
        dispatcher.on_step(step, final=final)
    until(lambda: records.read_progress(trainer.store, "run", dispatcher.desk.attempt) == 20)
    assert (dispatcher.desk.attempt, records.read_progress(trainer.store, "run", 0)) == (1, 20)


def test_the_credentials_of_prefect_are_sent_and_not_stored(
    trainer: Trainer, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_KEY", "prefect-secret")
    prefect.failing = 503
    trainer.start().on_step(10)
    until(lambda: prefect.headers)
    assert prefect.headers[0]["Authorization"] == "Bearer prefect-secret"
    files = [file for file in trainer.settings.home.rglob("*") if file.is_file()]
    assert not any(b"prefect-secret" in file.read_bytes() for file in files)


@pytest.mark.parametrize("other", ["store", "emptied"])
def test_another_store_at_the_same_prefect_has_flow_runs_of_its_own(trainer: Trainer, prefect: FakePrefect, other: str) -> None:
    first = trainer.start()
    first.on_step(10)
    until(lambda: prefect.runs)
    records.commit(trainer.store, report_at(10))
    assert first.drain(5)
    first.close()
    prefect.runs[0].end("Completed")
    if other == "store":
        url = (trainer.folder / "another").as_uri()
        trainer.settings = trainer.settings.model_copy(update={"store_url": url})
    else:
        shutil.rmtree(path_of(trainer.store.url))
    second = trainer.start()
    second.on_step(10)
    until(lambda: len(prefect.runs) == 2)
    assert not second.drain(0.3)  # its flow has not run yet
    assert second.records == []


def test_a_process_that_delivers_for_another_one_asks_for_the_same_flow_run(trainer: Trainer, prefect: FakePrefect) -> None:
    prefect.stop()
    first = trainer.start()
    first.on_step(10)
    (file,) = (trainer.settings.home / "outbox").glob("*.json")
    written = Delivery.model_validate_json(file.read_text()).idempotency_key
    first.close()
    prefect.start()
    trainer.start()
    until(lambda: prefect.runs)
    assert prefect.runs[0].body["idempotency_key"] == written


def in_flight_of(dispatcher: EvalDispatcher) -> in_flight.InFlight:
    """Its only point that is."""
    [flight] = dispatcher.desk.submitter.watch._in_flight.values()
    return flight


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [("SCHEDULED", "Late", "Skipped"), ("PENDING", "Pending", "Skipped"), ("RUNNING", "Running", "Running")],
)
def test_the_flow_run_of_a_point_that_was_given_up_is_skipped_in_the_ui_unless_it_has_begun(
    trainer: Trainer, prefect: FakePrefect, kind: str, name: str, shown: str
) -> None:
    dispatcher = trainer.start()
    dispatcher.on_step(10)
    until(lambda: in_flight_of(dispatcher).flow_run_id is not None)
    prefect.runs[0].state = {"type": kind, "name": name}
    in_flight_of(dispatcher).deadline = 0.0
    until(lambda: dispatcher.records)
    until(lambda: not dispatcher.desk.submitter.watch._given_up)
    state = prefect.runs[0].state
    assert state["name"] == shown
    if shown == "Skipped":
        assert (state["type"], state["message"]) == ("COMPLETED", "timeout: no report within the point's deadline")


@pytest.mark.parametrize("how", ["503", "deleted"])
def test_a_prefect_that_does_not_take_that_keeps_nothing_waiting(trainer: Trainer, prefect: FakePrefect, how: str) -> None:
    dispatcher = trainer.start()
    dispatcher.on_step(10)
    until(lambda: trainer.outbox == [] and in_flight_of(dispatcher).flow_run_id is not None)
    if how == "503":
        prefect.failing = 503
    else:
        prefect.forgets = True
    in_flight_of(dispatcher).deadline = 0.0
    until(lambda: dispatcher.records)
    assert dispatcher.drain(10)
    prefect.failing = None
    until(lambda: not dispatcher.desk.submitter.watch._given_up)
    assert prefect.runs[0].state["name"] == ("Skipped" if how == "503" else "Scheduled")


def test_a_skip_of_a_point_that_has_a_flow_run_is_shown_by_it(trainer: Trainer, prefect: FakePrefect) -> None:
    dispatcher = trainer.start()
    submitter = dispatcher.desk.submitter
    request = example_request(OTHER, store_url=trainer.store.url)
    for skip in (None, replace(SKIPPED, point=OTHER)):
        submitter.submit(Delivery.of(request, DEPLOYMENT, skip), None)
        until(lambda: trainer.outbox == [])
    assert [run.state["name"] for run in prefect.runs] == ["Skipped"]


def test_a_staged_model_that_waited_for_prefect_is_not_swept_while_its_flow_waits_in_the_queue(
    trainer: Trainer, prefect: FakePrefect
) -> None:
    folder = leave(trainer, OTHER)
    long_ago = time.time() - 7 * 24 * 3600
    os.utime(folder.parent / TTL, (long_ago, long_ago))
    assert stale_staged(trainer.settings.staging_dir, staged_in_outbox(trainer.settings.home)) == {}
    trainer.start()
    until(lambda: trainer.outbox == [])
    assert [run.state["name"] for run in prefect.runs] == ["Scheduled"]
    assert stale_staged(trainer.settings.staging_dir, staged_in_outbox(trainer.settings.home)) == {}


def test_what_prefect_refuses_is_not_set_aside_before_its_point_has_a_record(
    trainer: Trainer, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnreachable("away")

    prefect.refusing = 409
    with monkeypatch.context() as patched:
        patched.setattr(watch, "commit", away)
        first = trainer.start()
        first.on_step(10)
        until(lambda: [path for _, path, _ in prefect.requests if path.endswith("create_flow_run")])
        first.close()
    assert trainer.outbox == [".json"]
    trainer.start()
    until(lambda: trainer.outbox == [".refused"])
    record = records.find(trainer.store, POINT, "suite")
    assert isinstance(record, SkippedPoint)
    assert (record.reason, "Prefect answered 409" in record.message) == ("crashed", True)


def test_what_prefect_refuses_and_can_not_have_a_record_is_set_aside_all_the_same(
    trainer: Trainer, prefect: FakePrefect
) -> None:
    prefect.refusing = 409
    damaged_record(trainer, prefect, trainer.folder)
    leave(trainer, OTHER)
    trainer.start()
    until(lambda: ".refused" in trainer.outbox)
    assert trainer.outbox == [".json", ".refused"]  # the skip, whose record can't be written either, waits for that


def test_a_point_that_another_process_delivered_is_watched_by_its_own_trainer(
    trainer: Trainer, prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 60.0)
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 3.0)
    prefect.failing = 503
    own = trainer.start()
    own.on_step(10)
    until(lambda: prefect.requests)
    prefect.failing = None
    other = trainer.start()
    until(lambda: trainer.outbox == [])
    other.close()
    assert in_flight_of(own).flow_run_id is None
    prefect.runs[0].end("Crashed")
    until(lambda: own.records)
    assert [getattr(record, "reason", None) for record in own.records] == ["crashed"]
    assert len(prefect.runs) == 1


def test_a_flow_that_begins_again_has_its_time_once_more_and_so_has_its_staged_model(tmp_path: Path) -> None:
    folder = new_staged(tmp_path, POINT, 10.0)
    flight = in_flight.InFlight.of(example_request(staged=str(folder)))
    deadline, long_ago = flight.deadline, time.time() - 3600
    for kind, state in (("PENDING", "Pending"), ("RUNNING", "Running"), ("CRASHED", "Crashed")):
        flight.heard(kind, state)
    assert (flight.deadline, flight.ended_at is None) == (deadline, False)
    os.utime(folder.parent / TTL, (long_ago, long_ago))
    for kind, state in (("SCHEDULED", "AwaitingRetry"), ("RUNNING", "Running"), ("CRASHED", "Crashed"), ("RUNNING", "Running")):
        flight.heard(kind, state)
    assert (flight.deadline, flight.ended_at) == (deadline + flight.deadline_s, None)
    assert flight.deadline_s > 0
    assert time.time() - (folder.parent / TTL).stat().st_mtime < 1800

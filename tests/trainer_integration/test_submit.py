"""Prefect up, slow, hung, down or restarting: what was decided on is delivered, and ends with a record in the store."""

from __future__ import annotations

import pytest

from infra import leases, records
from infra.model import EvalPoint, SkippedPoint
from infra.snapshot import new_prefix
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import POINT, report_at
from tests.trainer_integration.conftest import Trainer, until


def test_a_due_step_becomes_one_flow_run_with_name_tags_and_request(trainer: Trainer, prefect: FakePrefect) -> None:
    trainer.start().on_step(10)
    until(lambda: prefect.runs)
    body = prefect.runs[0].body
    assert body["name"] == "run · step 000010"
    assert body["tags"] == ["run:run", "step:10", "suite:suite"]
    assert body["parameters"]["request"]["source"] == {"path": str(trainer.export.folders[0]), "staged": True}
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
    assert first.submitter.outbox.folder.exists()
    dispatcher = trainer.start()
    dispatcher.attempt = 0  # the same point once more
    dispatcher.on_step(10)
    until(lambda: len([r for r in prefect.requests if r[1].endswith("create_flow_run")]) == 2)
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
    dispatcher.on_step(10)
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
    assert records.find(trainer.store, POINT, "suite") == record
    assert trainer.staged == []
    assert trainer.store.list("snapshots") == {}


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
    assert dispatcher.submitter.in_flight == 0


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
    until(lambda: records.read_progress(trainer.store, "run") == 12)
    dispatcher.on_step(13)
    dispatcher.close()
    assert records.read_progress(trainer.store, "run") == 13


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

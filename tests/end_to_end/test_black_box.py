"""A user's own evaluation through the whole flow: exported, given as a folder, reported, retired; or skipped with reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.model import BlackBoxSpec, EvalReport, EvalRequest, FleetSpec, SkippedPoint, Suite
from tests.end_to_end.points import Points, has_ended, state_of, wait_until
from tests.services.stack import RunningStack

BOXES = "tests.fakes.black_boxes."


def own(points: Points, step: int, kind: str, notes: Path) -> EvalRequest:
    notes.mkdir()
    spec = BlackBoxSpec(function=BOXES + kind, settings={"notes": str(notes)})
    changes = {"black_box": spec, "suite": Suite(name="suite"), "fleet": FleetSpec()}
    return points.request(step).model_copy(update=changes)


@pytest.mark.parametrize("where", ["file", "s3"])
def test_a_snapshot_is_given_as_a_folder_and_its_numbers_are_the_points(
    services: RunningStack, points: Points, model: Path, tmp_path: Path, where: str
) -> None:
    if where == "s3":
        points = Points(services, model, points.run, services.s3_url(points.run))
    points.submit(own(points, 1, "Well", tmp_path / "notes"))
    record = points.record(1)
    assert isinstance(record, EvalReport), record
    assert record.metrics == {"size": (model / "model.safetensors").stat().st_size, "step": 1}
    assert (record.results, record.proofs) == ((), ())
    assert (tmp_path / "notes" / "disposed").exists()
    wait_until(points.nothing_left)
    assert not list((services.home / "staging" / "fetched").glob("black-box-*"))


def test_a_black_box_that_raises_is_a_crashed_point(services: RunningStack, points: Points, tmp_path: Path) -> None:
    points.submit(own(points, 1, "Raises", tmp_path / "notes"))
    record = points.record(1)
    assert isinstance(record, SkippedPoint)
    assert (record.reason, "KeyError: 'my own bug'" in record.message) == ("crashed", True)
    wait_until(lambda: has_ended(services, points.run))
    of_run = {"logs": {"flow_run_id": {"any_": [state_of(services, points.run)["id"]]}}, "limit": 200}

    def traceback_is_in_the_log() -> bool:
        lines = [line["message"] for line in services.post("/logs/filter", of_run)]
        return any("Traceback" in line and "my own bug" in line for line in lines)

    wait_until(traceback_is_in_the_log, 60)  # the server writes log lines a moment after it has taken them
    wait_until(points.nothing_left)


def test_a_skip_of_the_black_box_is_attributed(services: RunningStack, points: Points, tmp_path: Path) -> None:
    points.submit(own(points, 1, "Skips", tmp_path / "notes"))
    record = points.record(1)
    assert isinstance(record, SkippedPoint)
    assert (record.reason, record.message) == ("license_server", "no seat was free")
    wait_until(lambda: has_ended(services, points.run))
    assert "skipped:license_server" in state_of(services, points.run)["tags"]

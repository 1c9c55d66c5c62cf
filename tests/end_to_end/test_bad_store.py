"""A bad store costs a point at most, with its reason; nothing of it stays behind, and the next point is measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from infra.model import EvalReport, SkippedPoint
from infra.retention import kept
from infra.snapshot import read_manifest
from tests.end_to_end.points import Points, run_name, wait_until
from tests.fakes.s3_proxy import Faults, parts_of_uploads
from tests.services.small_disk import small_disk
from tests.services.stack import RunningStack
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

MEGABYTES = 40  # larger than two parts, so that it goes up as a multipart upload


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    build_model(3, hidden=512, layers=3).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    assert (folder / "model.safetensors").stat().st_size > MEGABYTES * 10**6
    return folder


@pytest.fixture
def on_s3(services: RunningStack, large_model: Path, request: pytest.FixtureRequest) -> Iterator[Points]:
    name = run_name(request)
    yield Points(services, large_model, name, services.s3_url(name))
    services.s3_wire.mend()


def test_bursts_of_errors_and_broken_connections_do_not_cost_the_point(services: RunningStack, on_s3: Points) -> None:
    services.s3_wire.faults = Faults(strikes=parts_of_uploads, answers=[(503, "SlowDown")] * 2, breaks=2)
    on_s3.submit(on_s3.request(1))
    record = on_s3.record(1)
    assert isinstance(record, EvalReport), record
    assert services.s3_wire.struck == 4
    wait_until(on_s3.nothing_left)
    services.s3_wire.mend()


@pytest.mark.parametrize("fault", ["full", "broken"])
def test_a_store_that_does_not_take_the_snapshot_makes_the_point_export_failed_and_the_next_works(
    services: RunningStack, on_s3: Points, fault: str
) -> None:
    services.s3_wire.faults = Faults(strikes=parts_of_uploads, full=fault == "full", broken=fault == "broken")
    on_s3.submit(on_s3.request(1))
    record = on_s3.record(1)
    services.s3_wire.mend()
    assert isinstance(record, SkippedPoint)
    assert record.reason == "export_failed"
    assert {"full": "is full", "broken": "does not answer"}[fault] in record.message
    wait_until(on_s3.nothing_left)
    assert on_s3.store.open_uploads("snapshots") == ()
    on_s3.submit(on_s3.request(2))
    assert isinstance(on_s3.record(2), EvalReport)


def test_a_full_disk_makes_the_point_export_failed_and_the_next_works(
    services: RunningStack, large_model: Path, model: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", MEGABYTES // 2) as disk:
        points = Points(services, large_model, "full-disk", (disk / "store").as_uri())
        points.submit(points.request(1))
        record = points.record(1)
        assert isinstance(record, SkippedPoint)
        assert (record.reason, "is full" in record.message) == ("export_failed", True)
        wait_until(points.nothing_left)
        points.model = model
        points.submit(points.request(2))
        assert isinstance(points.record(2), EvalReport)
        wait_until(points.nothing_left)


def test_a_store_that_is_slow_costs_time_and_nothing_else(services: RunningStack, on_s3: Points) -> None:
    services.s3_wire.faults = Faults(strikes=parts_of_uploads, bytes_per_s=8 * 2**20)
    on_s3.submit(on_s3.request(1))
    record = on_s3.record(1)
    assert isinstance(record, EvalReport), record
    assert record.phases["export"] > 1.5


def test_the_newest_evaluated_snapshots_stay_if_asked_for(services: RunningStack, points: Points) -> None:
    for step in (1, 2, 3):
        points.submit(points.request(step, keep_snapshots=2))
        assert isinstance(points.record(step), EvalReport)
        wait_until(partial(_is_kept, points, step))
    wait_until(lambda: len(kept(points.store, points.run)) == 2)
    assert [read_manifest(points.store, prefix).step for prefix in kept(points.store, points.run)] == [2, 3]


def _is_kept(points: Points, step: int) -> bool:
    return step in [read_manifest(points.store, prefix).step for prefix in kept(points.store, points.run)]

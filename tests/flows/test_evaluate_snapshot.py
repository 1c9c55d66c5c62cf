"""A flow run that begins after its point has ended measures nothing, and frees what was staged for it."""

from __future__ import annotations

from pathlib import Path

from flows.evaluate_snapshot import _measure
from infra.records import commit
from infra.staging import new_staged
from infra.store import Store
from tests.infra.examples import report_at, request


async def test_a_point_that_its_trainer_has_given_up_is_not_measured(tmp_path: Path) -> None:
    store, record = Store((tmp_path / "store").as_uri()), report_at(10)
    staged = new_staged(tmp_path / "staging", record.point, 60)
    (staged / "model.safetensors").write_bytes(b"weights")
    commit(store, record)
    asked = request(record.point, store.url, str(staged))
    assert asked.suite.name == record.suite
    assert await _measure(asked, {}) == record
    assert not staged.exists()
    assert store.list("leases") == store.list("snapshots") == {}

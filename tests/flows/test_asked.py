"""What a person asks for from a terminal is delivered as a trainer's points are."""

from __future__ import annotations

import shutil
from pathlib import Path

from flows.asked import delivery_of
from infra.records import next_attempt
from infra.store import Store
from tests.infra.examples import request


def test_a_store_that_was_emptied_asks_prefect_for_other_flow_runs(tmp_path: Path) -> None:
    """Prefect never forgets a key, and the store counts attempts from 0 again."""
    asked = request(store_url=(tmp_path / "store").as_uri())
    store = Store(asked.store_url)
    assert next_attempt(store, asked.point.run) == 0
    first = delivery_of(asked).idempotency_key
    assert delivery_of(asked).idempotency_key == first
    shutil.rmtree(tmp_path / "store")
    assert next_attempt(store, asked.point.run) == 0
    assert delivery_of(asked).idempotency_key != first

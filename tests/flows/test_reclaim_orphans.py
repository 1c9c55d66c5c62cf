"""A sweep does all that it can, shows what it could not, and fails only then."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import reclaim_orphans as reclaiming
from infra import leases
from infra.errors import StoreError
from infra.model import EvalPoint
from infra.snapshot import new_prefix
from infra.store import Store
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import request
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox


@pytest.fixture
def prefect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePrefect]:
    with FakePrefect() as server:
        monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("PINPOINT_STAGING_DIR", str(tmp_path / "staging"))
        monkeypatch.setenv("PINPOINT_PREFECT_API_URL", server.api_url)
        yield server


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    tables = list[list[dict[str, str]]]()

    async def create(table: list[dict[str, str]], **_: Any) -> uuid.UUID:
        tables.append(table)
        return uuid.uuid4()

    monkeypatch.setattr(reclaiming, "acreate_table_artifact", create)
    return tables


def orphan(store: Store, run: str) -> str:
    prefix = new_prefix(EvalPoint(run=run, step=1))
    leases.acquire(store, prefix, owner="killed", purpose="export", ttl_s=0.0)
    return prefix


async def test_a_prefix_that_fails_keeps_nothing_else_from_being_done_and_is_shown(
    prefect: FakePrefect, shown: list[list[dict[str, str]]], tmp_path: Path
) -> None:
    store = Store((tmp_path / "store").as_uri())
    bad, good = orphan(store, "bad"), orphan(store, "good")
    store.write("snapshots/bad", b"a file, where the folder of a run should be")
    store.write(f"{good}/model.safetensors", b"12345")
    Outbox(tmp_path / "home" / "outbox").put(Delivery.of(request(store_url=store.url), DEPLOYMENT))
    await asyncio.sleep(0.05)
    with pytest.raises(StoreError, match="NotADirectoryError"):
        await reclaiming.reclaim_orphans.fn(store_url=store.url)
    assert store.list(good) == {}
    assert len(prefect.runs) == 1
    [table] = shown
    states = {row["place"]: row["state"] for row in table}
    assert states[store.url_of(good)] == "deleted"
    assert states[store.url_of(bad)].startswith("not swept: store file://")


async def test_staging_is_swept_and_shown_though_the_store_can_not_be_listed(
    prefect: FakePrefect, shown: list[list[dict[str, str]]], tmp_path: Path
) -> None:
    (tmp_path / "store").write_text("no folder")
    over = tmp_path / "staging" / "staged" / "run" / "step" / "model"
    over.mkdir(parents=True)
    (over.parent / "ttl").write_text("0")
    await asyncio.sleep(0.05)
    with pytest.raises(StoreError):
        await reclaiming.reclaim_orphans.fn(store_url=(tmp_path / "store").as_uri())
    assert not over.exists()
    assert [row["state"].partition(":")[0] for row in shown[0]] == ["deleted", "not swept"]

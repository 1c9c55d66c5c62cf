"""A flow that is killed in the middle of its export and begins again sends only the rest, to the same prefix."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from infra import leases
from infra.export import send
from infra.handover import leave
from infra.model import SnapshotSource
from infra.snapshot import new_prefix, validate
from infra.store import Store
from tasks import retire as retiring
from tasks.retire import owning
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import POINT, request


@pytest.fixture(autouse=True)
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retiring, "retire", retiring.retire.fn)


@pytest.fixture
def flow_run(monkeypatch: pytest.MonkeyPatch) -> str:
    """This process is one of its starts."""
    found = str(uuid.uuid4())
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", found)
    return found


async def test_a_start_after_a_kill_goes_on_at_the_prefix_of_the_first_and_a_first_has_one_of_its_own(
    flow_run: str, tmp_path: Path
) -> None:
    folder, store = make_checkpoint(tmp_path / "c"), Store((tmp_path / "store").as_uri())
    staged = request(store_url=store.url).model_copy(update={"source": SnapshotSource(path=str(folder), staged=True)})
    killed, alive = new_prefix(POINT), new_prefix(POINT)
    for prefix, by in ((killed, flow_run), (alive, str(uuid.uuid4()))):
        leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export", by=by)
    sent = await send(store, folder, ["config.json", "tokenizer.json"], killed)
    leave(store, POINT, flow_run)
    async with owning(staged) as prefix:
        assert prefix == killed
        rest = await send(store, folder, validate(folder), prefix)
        assert rest.n_bytes == (folder / "model.safetensors").stat().st_size
        assert sent.files.items() <= rest.files.items()
    assert store.list("") == {}
    assert not folder.exists()


async def test_what_nobody_left_is_not_gone_on_with(flow_run: str, tmp_path: Path) -> None:
    store = Store((tmp_path / "store").as_uri())
    staged = request(store_url=store.url, staged=str(tmp_path / "gone"))
    other = new_prefix(POINT)
    leases.acquire(store, other, owner=leases.owner_of(POINT), purpose="export", by=flow_run)
    async with owning(staged) as prefix:
        assert prefix != other
        assert [holder.id.partition(".")[0] for holder in leases.live_holders(store, prefix)] == [flow_run]

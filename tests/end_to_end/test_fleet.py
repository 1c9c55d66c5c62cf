"""A fleet on real Ray: one holder at a time, warm between points, gone when idle, refused with numbers when it can't be."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows import fleet as fleet_command
from infra.errors import LeaseLost, NoCapacity
from infra.fleet import lease as leasing
from infra.fleet import standing
from infra.model import EvalPoint, FleetLease, FleetSpec, SnapshotRef
from infra.pinning import pin
from infra.snapshot import describe, validate
from tests.end_to_end.command import assert_one_clear_line, pinpoint
from tests.services.stack import RunningStack
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer


@pytest.fixture(scope="module", autouse=True)
def cluster(services: RunningStack) -> Iterator[None]:
    leasing.connect(services.stack.ray_address)
    import ray  # not before the stack is up: it reads the cluster's token when it is imported

    yield
    ray.shutdown()


def snapshot_in(folder: Path, seed: int, *, hidden: int = 32) -> SnapshotRef:
    build_model(seed, hidden=hidden, layers=1).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    point = EvalPoint(run="fleet", step=seed)
    manifest = describe(folder, validate(folder), point)
    return SnapshotRef(point=point, location=folder.as_uri(), manifest=manifest, owned=False)


@pytest.fixture
def snapshot(tmp_path: Path) -> SnapshotRef:
    return snapshot_in(tmp_path, 1)


def spec(name: str, **changes: float) -> FleetSpec:
    return FleetSpec(name=name, num_engines=1, cpus_per_engine=0.25).model_copy(update=changes)


def alive(lease: FleetLease) -> list[bool]:
    return [psutil.pid_exists(engine.pid) for engine in lease.engines]


async def disband(fleet: FleetSpec) -> None:
    await leasing.call(leasing.warden(fleet.name).disband.remote(), 60)


async def test_a_leased_fleet_can_be_pinned_and_stays_warm_for_the_next_point(tmp_path: Path) -> None:
    fleet = spec("warm")
    first = await leasing.acquire(fleet, snapshot_in(tmp_path / "1", 1), "first")
    async with leasing.held(first):
        await pin(first, snapshot_in(tmp_path / "1", 1))
    second_snapshot = snapshot_in(tmp_path / "2", 2)
    second = await leasing.acquire(fleet, second_snapshot, "second")
    async with leasing.held(second):
        pinned = await pin(second, second_snapshot)
    assert pinned.proofs[0].reported_version == second_snapshot.version.token
    assert [engine.pid for engine in first.engines] == [engine.pid for engine in second.engines]
    assert second.epoch > first.epoch
    await disband(fleet)
    assert alive(second) == [False]


async def test_a_model_of_another_architecture_gets_engines_of_its_own(tmp_path: Path) -> None:
    fleet = spec("architecture")
    first = await leasing.acquire(fleet, snapshot_in(tmp_path / "1", 1), "first")
    await leasing.give_back(first)
    wider = snapshot_in(tmp_path / "2", 2, hidden=64)
    second = await leasing.acquire(fleet, wider, "second")
    async with leasing.held(second):
        await pin(second, wider)
    assert alive(first) == [False]
    await disband(fleet)


async def test_a_fleet_has_one_holder_at_a_time(snapshot: SnapshotRef) -> None:
    fleet = spec("one", lease_timeout_s=1.0)
    lease = await leasing.acquire(fleet, snapshot, "the first")
    with pytest.raises(NoCapacity, match="held by the first for all of 1 s"):
        await leasing.acquire(fleet, snapshot, "the second")
    waiting = asyncio.create_task(leasing.acquire(spec("one"), snapshot, "the third"))
    await asyncio.sleep(1)
    assert not waiting.done()
    await leasing.give_back(lease)
    third = await waiting
    assert third.holder == "the third"
    await leasing.give_back(third)
    await disband(fleet)


async def test_a_live_runs_point_has_a_shared_fleet_before_a_re_evaluation_that_waits_longer(snapshot: SnapshotRef) -> None:
    fleet, order = spec("shared"), list[str]()

    async def use(holder: str, priority: int) -> None:
        lease = await leasing.acquire(fleet, snapshot, holder, priority)
        order.append(holder)
        await leasing.give_back(lease)

    first = await leasing.acquire(fleet, snapshot, "first")
    waiting = []
    for holder, priority in (("saved", 1), ("trainer a", 0), ("trainer b", 0)):
        waiting.append(asyncio.create_task(use(holder, priority)))
        await asyncio.sleep(2.0)
    await leasing.give_back(first)
    await asyncio.gather(*waiting)
    assert order == ["trainer a", "trainer b", "saved"]
    await disband(fleet)


async def test_a_holder_whose_lease_has_passed_on_is_refused(snapshot: SnapshotRef) -> None:
    fleet = spec("fenced")
    old = await leasing.acquire(fleet, snapshot, "old")
    await leasing.give_back(old)
    new = await leasing.acquire(fleet, snapshot, "new")
    with pytest.raises(LeaseLost, match="held by new"):
        await leasing.confirm(old)
    await leasing.give_back(old)  # of a zombie: must not end the new one's
    await leasing.confirm(new)
    await leasing.give_back(new)
    await disband(fleet)


async def test_a_holder_that_does_not_renew_loses_the_fleet(snapshot: SnapshotRef) -> None:
    fleet = spec("expired", lease_timeout_s=60.0, lease_ttl_s=2.0)
    dead = await leasing.acquire(fleet, snapshot, "dead")
    next_one = await leasing.acquire(fleet, snapshot, "next")
    assert next_one.epoch > dead.epoch
    with pytest.raises(LeaseLost):
        await leasing.confirm(dead)
    await leasing.give_back(next_one)
    await disband(fleet)


async def test_a_body_whose_lease_is_lost_ends_with_that_error(snapshot: SnapshotRef) -> None:
    fleet = spec("lost", lease_ttl_s=2.0)
    lease = await leasing.acquire(fleet, snapshot, "unlucky")

    async def body() -> None:
        async with leasing.held(lease):
            await leasing.give_back(lease)
            await asyncio.sleep(30)

    with pytest.raises(LeaseLost):
        await body()
    await disband(fleet)


async def test_engines_end_when_nobody_has_asked_for_a_while(snapshot: SnapshotRef) -> None:
    fleet = spec("idle", idle_timeout_s=1.0)
    lease = await leasing.acquire(fleet, snapshot, "short")
    assert alive(lease) == [True]
    await leasing.give_back(lease)
    for _ in range(100):
        if alive(lease) == [False]:
            break
        await asyncio.sleep(0.2)
    assert alive(lease) == [False]


async def test_more_engines_than_the_cluster_has_room_for_are_refused_with_numbers(snapshot: SnapshotRef) -> None:
    with pytest.raises(NoCapacity, match=r"64 engines need 64 CPUs; the Ray cluster has \d+"):
        await leasing.acquire(spec("large", num_engines=64, cpus_per_engine=1.0), snapshot, "greedy")


async def test_a_dead_a_hung_and_a_hostless_engine_are_replaced_at_the_next_lease(snapshot: SnapshotRef) -> None:
    fleet = spec("healed")
    first = await leasing.acquire(fleet, snapshot, "first")
    await leasing.give_back(first)
    psutil.Process(first.engines[0].pid).kill()
    second = await leasing.acquire(fleet, snapshot, "second")
    await leasing.give_back(second)
    assert second.engines[0].pid != first.engines[0].pid
    psutil.Process(second.engines[0].pid).suspend()  # accepts connections and never answers
    third = await leasing.acquire(fleet, snapshot, "third")
    await leasing.give_back(third)
    assert third.engines[0].pid != second.engines[0].pid
    host = psutil.Process(third.engines[0].pid).parent()
    assert host is not None
    host.kill()
    fourth = await leasing.acquire(fleet, snapshot, "fourth")
    assert alive(fourth) == [True]
    assert alive(third) == [False]
    await leasing.give_back(fourth)
    await disband(fleet)


async def test_fleets_are_seen_and_stopped_from_a_terminal(snapshot: SnapshotRef) -> None:
    fleet = spec("seen")
    lease = await leasing.acquire(fleet, snapshot, "a point (flow run 7)")
    await pin(lease, snapshot)
    shown = await asyncio.to_thread(pinpoint, "fleet", "status")
    assert "Fleet seen (embedded engines): held by a point (flow run 7), for" in shown.stdout
    assert snapshot.version.token in shown.stdout
    listed = await asyncio.to_thread(pinpoint, "fleet", "status", "--json")
    [told] = [one for one in json.loads(listed.stdout) if one["name"] == "seen"]
    assert told["engines"][0]["pid"] == lease.engines[0].pid
    assert (told["holder"], told["ends_in_s"]) == (lease.holder, None)
    assert_one_clear_line(await asyncio.to_thread(pinpoint, "fleet", "stop", "seen"), "held by a point", "--force")
    await leasing.give_back(lease)
    stopped = await asyncio.to_thread(pinpoint, "fleet", "stop", "seen")
    assert (stopped.returncode, stopped.stdout) == (0, "Fleet seen has ended.\n")
    assert alive(lease) == [False]
    assert_one_clear_line(await asyncio.to_thread(pinpoint, "fleet", "stop", "seen"), "no fleet 'seen' runs", "fleets there: ")
    with pytest.raises(LeaseLost, match="warden of fleet seen is gone"):
        await leasing.confirm(lease)


async def test_a_fleet_whose_warden_gives_no_answer_is_shown_and_can_be_ended(
    snapshot: SnapshotRef, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr(standing, "CALL_TIMEOUT_S", 2.0)
    await asyncio.to_thread(leasing.connect)

    class Stuck:
        def status(self) -> None:
            time.sleep(3600)

        def end(self, *, force: bool) -> None:
            """Never begins: the call before it does not end."""

    name = f"{leasing.PREFIX}stuck"
    warden = ray.remote(num_cpus=0)(Stuck).options(name=name, namespace=leasing.NAMESPACE, lifetime="detached").remote()
    try:
        [shown] = [fleet for fleet in await standing.fleets() if fleet.name == "stuck"]
        assert not shown.answers
        monkeypatch.setattr(fleet_command, "_join", lambda _: None)
        monkeypatch.setattr(fleet_command, "fleets", standing.fleets)
        await asyncio.to_thread(fleet_command.status)
        assert "Fleet stuck: its warden gives no answer; `pinpoint fleet stop stuck --force`" in capsys.readouterr().out
        monkeypatch.setattr(standing, "END_TIMEOUT_S", 2.0)
        await standing.end("stuck", force=True)
        assert "stuck" not in [fleet.name for fleet in await standing.fleets()]
    finally:
        ray.kill(warden)

"""Whatever is killed or hangs, the point has a right result or an attributed skip, and the next one succeeds.

Training goes on beside it and sees nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from infra.errors import ConfigError, EngineDead, FleetHeld
from infra.fleet import lease as leasing
from infra.fleet.standing import end, fleets
from infra.model import EngineRef, EngineStatus, FleetSpec, SkippedPoint
from infra.pinning import pin
from tests.end_to_end.points import run_name
from tests.end_to_end.test_fleet import snapshot_in
from tests.services.stack import FLEET, RunningStack
from tests.services.training import Training


@pytest.fixture(scope="module", autouse=True)
def cluster(services: RunningStack) -> Iterator[None]:
    leasing.connect(services.stack.ray_address)
    import ray  # not before the stack is up: it reads the cluster's token when it is imported

    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def training(services: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """One run, on one fleet: the point after a kill is that of the next test, or of the same."""
    fleet = FLEET.model_copy(update={"name": "kills", "cpus_per_engine": 0.25, "hang_timeout_s": 4.0, "lease_ttl_s": 20.0})
    with Training(services, "kills", fleet, tmp_path_factory.mktemp("kills")) as made:
        yield made
    with suppress(ConfigError):  # there is none if a test has failed in between
        asyncio.run(end(fleet.name, force=True))


async def engines(fleet: str) -> list[EngineStatus]:
    [status] = [status for status in await fleets() if status.name == fleet]
    return list(status.engines)


async def test_an_engine_killed_while_it_generates_costs_no_sample(training: Training) -> None:
    step = training.generating()
    one, _ = await engines(training.fleet.name)
    psutil.Process(one.pid).kill()
    training.report(step)


async def test_all_engines_killed_while_they_generate_come_back_pinned_and_no_sample_is_lost(training: Training) -> None:
    step = training.generating()
    for engine in await engines(training.fleet.name):
        psutil.Process(engine.pid).kill()
    report = training.report(step)
    assert len(report.proofs) > 2  # nobody else could have answered
    assert len({proof.checksum for proof in report.proofs}) == 1


async def test_an_engine_that_hangs_while_it_generates_is_given_up(training: Training) -> None:
    step = training.generating()
    _, second = await engines(training.fleet.name)
    psutil.Process(second.pid).suspend()
    training.report(step)  # by the other engine, if that was done before another one was there
    training.report(training.train_on())
    assert not psutil.pid_exists(second.pid)


async def test_a_killed_ray_worker_takes_its_engine_along_and_both_are_replaced(training: Training) -> None:
    step = training.generating()
    one, _ = await engines(training.fleet.name)
    host = psutil.Process(one.pid).parent()
    assert host is not None
    host.kill()
    training.report(step)
    assert not psutil.pid_exists(one.pid)


async def test_a_killed_warden_or_a_fleet_stopped_by_force_costs_the_point_which_says_so(training: Training) -> None:
    import ray

    step = training.generating()
    left = await engines(training.fleet.name)
    with pytest.raises(FleetHeld, match=f"held by kills · step {step:06d}"):
        await end(training.fleet.name)
    ray.kill(leasing.warden(training.fleet.name))
    record = training.record(step)
    assert isinstance(record, SkippedPoint)
    assert (record.reason, "the warden of fleet kills is gone" in record.message) == ("unhealthy", True)
    step = training.generating()
    assert not [engine for engine in left if psutil.pid_exists(engine.pid)]
    await end(training.fleet.name, force=True)
    record = training.record(step)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "unhealthy"
    training.report(training.train_on())


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> FleetSpec:
    """Small enough to be placed beside the fleets that other tests keep warm."""
    return FLEET.model_copy(update={"name": run_name(request), "cpus_per_engine": 0.1})


async def test_an_engine_killed_while_it_loads_is_replaced_and_pinned(fleet: FleetSpec, tmp_path: Path) -> None:
    snapshot = snapshot_in(tmp_path / "model", 1)
    lease = await leasing.acquire(fleet, snapshot, "test")
    async with leasing.held(lease):
        revived: list[EngineRef] = []

        async def revive(engine: EngineRef) -> EngineRef:
            revived.append(engine)
            return await leasing.revive(lease, engine, snapshot)

        doomed = psutil.Process(lease.engines[0].pid)
        doomed.suspend()  # it has the request to load, and does not come to an end of it
        pinning = asyncio.create_task(pin(lease, snapshot, revive=revive))
        await asyncio.sleep(1.0)
        assert not pinning.done()
        doomed.kill()
        pinned = await pinning
    assert revived == [lease.engines[0]]
    assert pinned.engines[0].pid != doomed.pid
    assert pinned.engines[1] == lease.engines[1]
    await end(fleet.name)


async def test_without_another_chance_a_killed_engine_fails_the_pin_when_the_others_have_settled(
    fleet: FleetSpec, tmp_path: Path
) -> None:
    snapshot = snapshot_in(tmp_path / "model", 1)
    lease = await leasing.acquire(fleet, snapshot, "test")
    async with leasing.held(lease):
        psutil.Process(lease.engines[0].pid).kill()
        with pytest.raises(EngineDead):
            await pin(lease, snapshot)
    await end(fleet.name)

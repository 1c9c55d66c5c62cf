"""Engines get GPUs of their own from Ray, as many as their tensor-parallel size, or are refused with numbers.

Ray is told of four GPUs that this machine does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.errors import NoCapacity, UnknownKey
from infra.fleet import lease as leasing
from infra.model import FleetSpec, SnapshotRef
from infra.pinning import pin
from tests.end_to_end.test_fleet import disband, snapshot_in
from tests.fakes.sglang_python import launches, make_interpreter
from tests.services.stack import RunningStack


@pytest.fixture(scope="module", autouse=True)
def cluster(services: RunningStack) -> Iterator[None]:
    import ray  # not before the stack is up: it reads the cluster's token when it is imported

    ray.init(num_cpus=4, num_gpus=4, namespace=leasing.NAMESPACE, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def snapshot(tmp_path: Path) -> SnapshotRef:
    return snapshot_in(tmp_path / "model", 1)


def spec(folder: Path, name: str, gpus: int, each: int, **arguments: object) -> FleetSpec:
    python = make_interpreter(folder / "sglang")
    return FleetSpec(
        name=name,
        engine="sglang",
        engine_python=str(python),
        num_gpus=gpus,
        gpus_per_engine=each,
        cpus_per_engine=0.25,
        engine_args=arguments,
        rollout_engine_args={"tp_size": 8, "ep_size": 8, "mem_fraction_static": 0.7},
        boot_timeout_s=120,
    )


async def test_each_engine_has_gpus_of_its_own_and_the_settings_of_the_rollout_engines(
    tmp_path: Path, snapshot: SnapshotRef
) -> None:
    import ray

    fleet = spec(tmp_path, "gpus", 4, 2, **{"mem-fraction-static": 0.9})
    lease = await leasing.acquire(fleet, snapshot, "test")
    async with leasing.held(lease):
        assert len((await pin(lease, snapshot)).proofs) == 2
        assert ray.available_resources().get("GPU", 0.0) == 0.0
    started = launches(tmp_path / "sglang")
    assert sorted(gpu for launch in started for gpu in launch["gpus"].split(",")) == ["0", "1", "2", "3"]
    for launch in started:
        line = " ".join(launch["arguments"])
        assert "--tp-size 2 --dp-size 1 --ep-size 1 --load-format auto --log-level warning" in line
        assert line.endswith("--mem-fraction-static 0.9 --pp-size 1")
        assert "--device" not in line
    await disband(fleet)


async def test_more_gpus_than_the_cluster_has_are_refused_with_numbers(tmp_path: Path, snapshot: SnapshotRef) -> None:
    with pytest.raises(NoCapacity, match=r"3 engines need 6 GPUs; the Ray cluster has 4, 4 of them free"):
        await leasing.acquire(spec(tmp_path, "many", 6, 2), snapshot, "greedy")


async def test_a_placement_that_stays_pending_is_given_up_with_numbers(tmp_path: Path, snapshot: SnapshotRef) -> None:
    first = spec(tmp_path, "first", 3, 3)
    lease = await leasing.acquire(first, snapshot, "first")
    second = spec(tmp_path, "second", 2, 2).model_copy(update={"boot_timeout_s": 3.0})
    with pytest.raises(
        NoCapacity, match=r"not placed within 3 s: .*1 engines need 2 GPUs; the Ray cluster has 4, 1 of them free"
    ):
        await leasing.acquire(second, snapshot, "second")
    await leasing.give_back(lease)
    await disband(first)


async def test_an_argument_that_the_engine_does_not_have_is_refused_before_a_gpu_is_taken(
    tmp_path: Path, snapshot: SnapshotRef
) -> None:
    import ray

    with pytest.raises(UnknownKey, match="did you mean 'mem_fraction_static'"):
        await leasing.acquire(spec(tmp_path, "unknown", 4, 2, mem_fraction_statik=0.9), snapshot, "careless")
    assert ray.available_resources()["GPU"] == 4.0
    assert launches(tmp_path / "sglang") == []

"""Engines on two Ray nodes: one over both, and two of which one is lost with its node.

The nodes are raylets on this machine, which Ray was told have a GPU each; SGLang's interpreter is a fake that starts the
embedded engine, so that nobody misses the GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.canary import TOKENS
from infra.errors import FleetUnhealthy, NoCapacity
from infra.fleet import lease as leasing
from infra.fleet.standing import end, fleets
from infra.model import FleetSpec, Problem, ProofLevel, Sampling, SnapshotRef
from infra.pinning import pin
from infra.running import run_samples
from infra.store import Store
from tasks.pin import attended
from tests.end_to_end.points import wait_until
from tests.end_to_end.test_fleet import snapshot_in
from tests.fakes.sglang_python import launches, make_interpreter
from tests.infra.examples import dataset
from tests.services.ended import ended
from tests.services.stack import RunningStack
from tests.sglang.launching import SMALL, sglang_fleet


@pytest.fixture
def cluster(services: RunningStack) -> Iterator[Any]:
    """A head and a second node, each of one CPU and one GPU; gives what can take them away."""
    from ray.cluster_utils import Cluster  # not before the stack is up: it reads the cluster's token when it is imported

    each = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, connect=False, head_node_args=each)
    made.add_node(num_cpus=1, num_gpus=1)
    made.wait_for_nodes()
    import ray

    ray.init(address=made.address, namespace=leasing.NAMESPACE, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def snapshot(tmp_path: Path) -> SnapshotRef:
    return snapshot_in(tmp_path / "model", 1)


def spec(folder: Path, name: str, gpus: int, each: int, **changes: Any) -> FleetSpec:
    given = {
        "engine": "sglang",
        "engine_python": str(make_interpreter(folder / "sglang")),
        "num_gpus": gpus,
        "gpus_per_engine": each,
        "cpus_per_engine": 0.5 * each,
        "boot_timeout_s": 60.0,
        **changes,
    }
    return FleetSpec(name=name, **given)


def said(launch: dict[str, Any], name: str) -> str:
    return str(launch["arguments"][launch["arguments"].index(name) + 1])


async def test_an_engine_of_more_gpus_than_a_node_has_is_shared_out_over_two(
    cluster: Any, tmp_path: Path, snapshot: SnapshotRef
) -> None:
    fleet = spec(tmp_path, "wide", 2, 2)
    lease = await leasing.acquire(fleet, snapshot, "first")
    async with leasing.held(lease):
        assert len((await pin(lease, snapshot)).proofs) == 1
    first = launches(tmp_path / "sglang")
    assert sorted(said(launch, "--node-rank") for launch in first) == ["0", "1"]
    assert {(said(launch, "--nnodes"), said(launch, "--tp-size")) for launch in first} == {("2", "2")}
    [meeting] = {said(launch, "--dist-init-addr") for launch in first}
    assert [launch["gpus"] for launch in first] == ["0", "0"]  # each node calls its only one so

    follower = next(launch for launch in first if said(launch, "--node-rank") == "1")
    psutil.Process(follower["pid"]).kill()
    assert ended(follower["pid"], 30)
    again = await leasing.acquire(fleet, snapshot, "second")
    async with leasing.held(again):
        assert again.engines[0].pid != lease.engines[0].pid  # one part can't go on without the other
        await pin(again, snapshot)
    second = [launch for launch in launches(tmp_path / "sglang") if launch not in first]
    assert len(second) == 2
    assert {said(launch, "--dist-init-addr") for launch in second} != {meeting}
    await end(fleet.name)
    assert all(ended(launch["pid"], 30) for launch in second)


@pytest.mark.sglang
async def test_a_real_sglang_over_two_nodes_is_proved_by_content(
    monkeypatch: pytest.MonkeyPatch, services: RunningStack, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each node has one of two tensor-parallel ranks, on a CPU. Wide enough that SGLang pads no rank's part."""
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    request.getfixturevalue("cluster")
    given = {"num_gpus": 2, "gpus_per_engine": 2, "cpus_per_engine": 1.0, "engine_args": {**SMALL, "device": "cpu"}}
    fleet = sglang_fleet(name="real", **given)
    first, second = (snapshot_in(tmp_path / str(seed), seed, hidden=64) for seed in (1, 2))
    booted = await leasing.acquire(fleet, first, "first")
    await leasing.give_back(booted)
    lease = await leasing.acquire(fleet, second, "second")
    async with leasing.held(lease):
        [proof] = (await pin(lease, second)).proofs
    assert lease.engines[0].pid == booted.engines[0].pid  # both parts have loaded what is new
    assert (proof.level, proof.tensors, proof.tensors_proved) == (ProofLevel.CONTENT, 20, 20)
    assert len(proof.canary) == TOKENS - 1
    await end(fleet.name)


async def test_what_does_not_fit_on_the_nodes_is_refused_with_numbers(
    cluster: Any, tmp_path: Path, snapshot: SnapshotRef
) -> None:
    from infra.fleet.placement import Shape, fit

    two, uneven = spec(tmp_path, "two", 8, 4), spec(tmp_path, "uneven", 9, 9)
    node = {"CPU": 8.0, "GPU": 4.0}
    assert fit(two, [node, node]) == Shape(nodes=1, cpus=2.0, gpus=4)
    assert fit(two, [{"CPU": 8.0, "GPU": 2.0}] * 4) == Shape(nodes=2, cpus=1.0, gpus=2)
    assert fit(two, [{"CPU": 8.0, "GPU": 8.0}, {"CPU": 8.0}]) == Shape(nodes=1, cpus=2.0, gpus=4)
    with pytest.raises(NoCapacity, match="1 engines of 9 GPUs each, .* don't fit on nodes that have 6, 6"):
        fit(uneven, [{"CPU": 8.0, "GPU": 6.0}] * 2)
    assert fit(uneven, [{"CPU": 8.0, "GPU": 6.0}] * 3) == Shape(nodes=3, cpus=1.5, gpus=3)


async def test_an_engine_whose_node_is_lost_is_missed_until_there_is_another_node(
    cluster: Any, tmp_path: Path, snapshot: SnapshotRef
) -> None:
    fleet = spec(tmp_path, "spread", 2, 1, cpus_per_engine=1.0, boot_timeout_s=40.0)
    lease = await leasing.acquire(fleet, snapshot, "first")
    spec_of_samples = dataset(samples_per_prompt=2, sampling=Sampling(max_new_tokens=8))
    problems = [Problem(id=str(n), prompt=f"{n}+1=", answer=str(n + 1), entry={}) for n in range(10)]
    async with leasing.held(lease):
        pinned = await pin(lease, snapshot)
        [second] = cluster.worker_nodes
        async with attended(pinned, Store((tmp_path / "store").as_uri()).url) as roster:
            cluster.remove_node(second, allow_graceful=False)  # kills its raylet, at which its workers end
            samples = await run_samples(pinned, spec_of_samples, problems, str, roster)
    assert len(samples) == 20
    assert {sample.weight_versions for sample in samples} == {(pinned.token,)}
    wait_until(lambda: any(ended(engine.pid) for engine in lease.engines), 30)  # a node's workers see later that it is gone

    with pytest.raises((NoCapacity, FleetUnhealthy), match="the Ray cluster has 1|not placed within 40 s|not ready"):
        await leasing.acquire(fleet, snapshot, "second")
    cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.wait_for_nodes()
    third = await leasing.acquire(fleet, snapshot, "third")
    async with leasing.held(third):
        assert len((await pin(third, snapshot)).proofs) == 2
    assert [status.name for status in await fleets()] == [fleet.name]
    await end(fleet.name)

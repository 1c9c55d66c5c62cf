"""A model whose parts lie on several hosts is exported by those hosts, checked where it then is, and freed on each."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.reclaim_orphans import sweep_staging_here
from infra.fleet import lease as leasing
from infra.fleet.nodes import on_host, on_node
from infra.model import EvalPoint, EvalReport, SkippedPoint, SnapshotSource, StagedPart
from infra.staging import new_staged
from infra.validation.adapters import ADAPTER_WEIGHTS
from tests.end_to_end.points import Points, wait_until
from tests.infra.adapters import make_adapter
from tests.infra.models import read_tensors, spread
from tests.services.stack import RunningStack

OTHER = "trainer-2"


@pytest.fixture(scope="module")
def other_node(services: RunningStack) -> Iterator[str]:
    """A second Ray node, on this machine, that goes by a name of its own; gives its Ray id."""
    leasing.connect(services.stack.ray_address)
    import ray

    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={services.stack.ray_address}"]
    command += [f"--node-name={OTHER}", "--num-cpus=1", "--block"]
    node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: any(n["NodeName"] == OTHER and n["Alive"] for n in ray.nodes()), 120)
        yield next(str(n["NodeID"]) for n in ray.nodes() if n["NodeName"] == OTHER and n["Alive"])
    finally:
        os.killpg(node.pid, signal.SIGTERM)
        try:
            node.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()
        ray.shutdown()


def split(points: Points, step: int) -> tuple[StagedPart, StagedPart]:
    """A staged model whose second shard lies elsewhere."""
    folder = points.staging / str(step)
    spread(folder, read_tensors(folder))
    away = points.staging / f"{step}-away"
    away.mkdir()
    first, second = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    (folder / second).rename(away / second)
    return (
        StagedPart(host=socket.gethostname(), path=str(folder), shards=(first,)),
        StagedPart(host=OTHER, path=str(away), shards=(second,)),
    )


def test_each_host_sends_its_part_and_frees_it(other_node: str, points: Points) -> None:
    request = points.request(1)
    source = request.source.model_copy(update={"parts": split(points, 1)})
    points.submit(request.model_copy(update={"source": source}))
    record = points.record(1)
    assert isinstance(record, EvalReport), record
    wait_until(points.nothing_left)


def test_an_adapter_is_sent_by_the_host_that_has_it(other_node: str, points: Points, model: Path) -> None:
    request = points.request(1)
    folder, here = Path(request.source.path), points.staging / "1-here"
    shutil.rmtree(folder)
    make_adapter(model, folder, scale=0.5)
    here.mkdir()
    parts = StagedPart(host=OTHER, path=str(folder), shards=(ADAPTER_WEIGHTS,)), StagedPart(path=str(here))
    points.submit(request.model_copy(update={"source": request.source.model_copy(update={"parts": parts})}))
    record = points.record(1)
    assert isinstance(record, EvalReport), record
    wait_until(points.nothing_left)


def test_a_part_that_was_lost_is_named_with_its_host(other_node: str, points: Points) -> None:
    request = points.request(1)
    parts = split(points, 1)
    lost = Path(parts[1].path) / parts[1].shards[0]
    lost.unlink()
    source = request.source.model_copy(update={"parts": parts})
    points.submit(request.model_copy(update={"source": source}))
    record = points.record(1)
    assert isinstance(record, SkippedPoint)
    assert (record.reason, str(lost) in record.message) == ("ckpt_missing", True)
    wait_until(points.nothing_left)


async def test_what_a_killed_trainer_left_on_another_node_is_swept_there(
    other_node: str, services: RunningStack, points: Points
) -> None:
    folder = new_staged(services.home / "staging", EvalPoint(run=points.run, step=1), 0.0)
    (folder / "model.safetensors").write_bytes(b"12345")
    await asyncio.sleep(0.1)
    found = await on_node(other_node, sweep_staging_here, True)
    assert [(item.size, item.deleted) for item in found if str(folder) in item.place] == [(5, False)]
    await on_node(other_node, sweep_staging_here, False)
    assert not folder.exists()


def test_a_host_that_is_not_in_the_cluster_is_named_with_the_remedy(services: RunningStack, points: Points) -> None:
    request = points.request(1)
    source = SnapshotSource(path="/gone", staged=True, parts=(StagedPart(host="nowhere", path="/gone"),))
    points.submit(request.model_copy(update={"source": source}))
    record = points.record(1)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "export_failed"
    assert "node nowhere" in record.message
    assert "ray start" in record.message
    assert points.store.list("snapshots") == {}


async def test_a_call_runs_on_the_host_it_is_meant_for(other_node: str) -> None:
    assert await on_host(OTHER, _node_id) == other_node
    assert await on_host("", time.monotonic) > 0
    with pytest.raises(ZeroDivisionError):
        await on_host(OTHER, _fails)


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _fails() -> float:
    return 1 / 0

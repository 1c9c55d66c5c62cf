"""A point is measured on real SGLang engines that Ray placed, through the flow that measures it on any engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.engines.client import EngineClient
from infra.errors import UnknownKey
from infra.fleet import lease as leasing
from infra.model import EvalReport, FleetSpec, ProofLevel
from infra.pinning import pin
from infra.records import history
from infra.store import Store
from tests.end_to_end.command import pinpoint
from tests.end_to_end.test_fleet import disband, snapshot_in
from tests.engines.launching import RunningEngine
from tests.services.ended import ended
from tests.services.stack import RunningStack
from tests.sglang.launching import SMALL, sglang_fleet

pytestmark = pytest.mark.sglang
SUITE = """
name: sums
defaults: {sampling: {temperature: 0, max_new_tokens: 8}}
datasets:
  - {name: small, source: small.jsonl}
  - {name: large, source: large.jsonl, samples_per_prompt: 2}
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(services: RunningStack) -> Iterator[None]:
    leasing.connect(services.stack.ray_address)
    import ray  # not before the stack is up: it reads the cluster's token when it is imported

    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def fleet() -> FleetSpec:
    return sglang_fleet(name="real", num_engines=2, cpus_per_engine=0.5)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    for name, first in (("small", 1), ("large", 40)):
        rows = [f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(first, first + 20)]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    return tmp_path / "suite.yaml"


def test_a_checkpoint_is_evaluated_on_sglang_engines_that_prove_what_they_hold(
    services: RunningStack, fleet: FleetSpec, suite: Path, tmp_path: Path
) -> None:
    snapshot_in(tmp_path / "tiny", 1)
    url = services.file_url("store-sglang")
    variables = {"PINPOINT_FLEET": fleet.model_dump_json()}
    done = pinpoint("evaluate", tmp_path / "tiny", "--suite", suite, "--store", url, timeout_s=590, **variables)
    assert done.returncode == 0, done.stderr
    [report] = history(Store(url), "tiny")
    assert isinstance(report, EvalReport)
    assert [proof.level for proof in report.proofs] == [ProofLevel.CONTENT] * 2
    assert {proof.tensors_proved for proof in report.proofs} == {10}
    assert {result.dataset: result.n_samples for result in report.results} == {"small": 20, "large": 40}
    assert {result.mixed_version_ratio for result in report.results} == {0.0}
    assert len(Store(url).list("checksums")) == 1


async def test_a_paused_engine_stays_and_a_dead_one_is_replaced(fleet: FleetSpec, tmp_path: Path) -> None:
    snapshot = snapshot_in(tmp_path / "other", 2)
    lease = await leasing.acquire(fleet, snapshot, "first")
    pids = [engine.pid for engine in lease.engines]
    async with leasing.held(lease):
        paused = RunningEngine(lease.engines[0].base_url, api_key=lease.api_key)
        paused.post("/pause_generation", {"mode": "abort"}).raise_for_status()
    doomed = psutil.Process(pids[1])
    children = doomed.children(recursive=True)
    doomed.kill()
    lease = await leasing.acquire(fleet, snapshot, "second")
    async with leasing.held(lease):
        assert lease.engines[0].pid == pids[0]
        assert lease.engines[1].pid != pids[1]
        assert all(ended(child.pid) for child in children)
        proofs = (await pin(lease, snapshot)).proofs
        assert paused.generate("1+1=")["meta_info"]["weight_version"] == snapshot.version.token
        async with EngineClient(paused.base_url, lease.api_key) as client:
            _, held, _ = await client.checksums(60)
        coverage = await leasing.reproduce_on_node(lease, lease.engines[0], held, snapshot.manifest)
    assert {proof.level for proof in proofs} == {ProofLevel.CONTENT}
    assert (set(coverage.proved), coverage.whole) == (set(held), True)
    await disband(fleet)


async def test_an_argument_that_sglang_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    wrong = sglang_fleet(name="wrong", num_engines=1, engine_args={**SMALL, "mem_fraction_statik": 0.5})
    with pytest.raises(UnknownKey, match="'mem_fraction_statik' .* did you mean 'mem_fraction_static'"):
        await leasing.acquire(wrong, snapshot_in(tmp_path / "tiny", 1), "careless")
    await disband(wrong)

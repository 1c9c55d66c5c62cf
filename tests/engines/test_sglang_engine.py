"""A real SGLang server is pinned by content, and what it does wrong is caught; what it does right is in the contract suite."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file

from infra.concurrency import gather_all
from infra.engines.client import EngineClient
from infra.errors import EngineRefused, PinViolation, SnapshotInvalid
from infra.model import EngineRef, EvalPoint, FleetLease, Problem, ProofLevel, SampleOutcome, Sampling, SnapshotRef
from infra.pinning import pin
from infra.running import run_samples
from infra.snapshot import describe, validate
from infra.store import Store
from tests.engines.conftest import Checkpoints
from tests.engines.launching import RunningEngine
from tests.infra.examples import dataset
from tests.sglang.launching import KEY

ENGINES = ["sglang"]
WEIGHTS = "model.safetensors"
TENSORS_HELD = 18  # of the 24 in the checkpoint: SGLang fuses q, k, v and gate, up of both layers


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


def snapshot_of(folder: Path, step: int) -> SnapshotRef:
    point = EvalPoint(run="real", step=step)
    return SnapshotRef(point=point, location=folder.as_uri(), manifest=describe(folder, validate(folder), point), owned=False)


def lease(engine: RunningEngine, folder: Path, configuration: str = "tiny") -> FleetLease:
    ref = EngineRef(name="engine-0", base_url=engine.base_url, pid=1, checkpoint_path=str(folder), configuration=configuration)
    return FleetLease(fleet="eval", epoch=1, holder="test", ttl_s=60.0, engines=(ref,), api_key=KEY)


def halved(folder: Path, target: Path) -> Path:
    """A checkpoint of which 12 of 24 tensors are missing."""
    copytree(folder, target)
    tensors = load_file(target / WEIGHTS)
    save_file(dict(sorted(tensors.items())[:12]), target / WEIGHTS, metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
async def test_a_snapshot_is_proved_by_content_tensor_by_tensor(
    engine: RunningEngine, checkpoints: Checkpoints, store: Store, dtype: torch.dtype
) -> None:
    folder = checkpoints.make(f"proved-{dtype}", 3, dtype=dtype)
    snapshot = snapshot_of(folder, 10)
    [proof] = (await pin(lease(engine, folder), snapshot, store)).proofs
    assert (proof.level, proof.tensors, proof.tensors_proved) == (ProofLevel.CONTENT, TENSORS_HELD, TENSORS_HELD)
    assert proof.reported_version == snapshot.version.token == engine.version()


async def test_a_sharded_snapshot_is_proved_by_content(engine: RunningEngine, checkpoints: Checkpoints) -> None:
    folder = checkpoints.make("second_sharded", 2, shard_size="20KB")
    [proof] = (await pin(lease(engine, folder), snapshot_of(folder, 10))).proofs
    assert proof.level is ProofLevel.CONTENT


async def test_half_a_checkpoint_that_the_server_calls_a_success_is_caught(
    engine: RunningEngine, first: Path, second: Path, tmp_path: Path, store: Store
) -> None:
    await pin(lease(engine, first), snapshot_of(first, 0), store)
    old, new = engine.checksums(), halved(second, tmp_path / "half")
    promised = snapshot_of(second, 10)
    with pytest.raises(SnapshotInvalid, match="which the manifest promises"):
        await pin(lease(engine, new), promised, store)
    assert engine.version() == promised.version.token
    mixed = engine.checksums()
    assert 0 < sum(mixed[name] == old[name] for name in old) < TENSORS_HELD


async def test_half_a_checkpoint_is_caught_even_where_its_manifest_promises_no_more(
    engine: RunningEngine, first: Path, second: Path, tmp_path: Path, store: Store
) -> None:
    await pin(lease(engine, first), snapshot_of(first, 0), store)
    new = halved(second, tmp_path / "half")
    point = EvalPoint(run="real", step=10)
    manifest = describe(new, [path.name for path in new.iterdir()], point)
    snapshot = SnapshotRef(point=point, location=new.as_uri(), manifest=manifest, owned=False)
    with pytest.raises(PinViolation, match=r"engine engine-0 .* of 18 tensors, the first is model\.\S+, which is not the snap"):
        await pin(lease(engine, new), snapshot, store)


async def test_weights_that_are_not_the_ones_in_the_folder_are_caught(
    engine: RunningEngine, first: Path, second: Path, tmp_path: Path, store: Store
) -> None:
    """The server loads what the manifest does not promise: one tensor is another."""
    await pin(lease(engine, first), snapshot_of(first, 0), store)
    other = copytree(second, tmp_path / "other")
    tensors = load_file(other / WEIGHTS)
    tensors["model.norm.weight"] += 1
    save_file(tensors, other / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(SnapshotInvalid, match=r"holds another model\.norm\.weight than the manifest promises"):
        await pin(lease(engine, other), snapshot_of(second, 10), store)


async def test_a_missing_folder_is_refused_and_the_old_weights_stay(engine: RunningEngine, second: Path) -> None:
    before = engine.checksums()
    with pytest.raises(EngineRefused, match="400"):
        await pin(lease(engine, second / "nowhere"), snapshot_of(second, 10))
    assert (engine.checksums(), engine.version()) == (before, "first")


async def test_the_label_alone_can_be_moved_so_it_proves_nothing(engine: RunningEngine) -> None:
    before = engine.checksums()
    engine.post("/update_weight_version", {"new_version": "liar", "abort_all_requests": False}).raise_for_status()
    assert (engine.version(), engine.checksums()) == ("liar", before)


def test_an_update_waits_for_a_long_request_unless_the_engine_is_paused(engine: RunningEngine, second: Path) -> None:
    engine.in_background("12+34=", tokens=400)
    started = time.monotonic()
    engine.update(second, "second").raise_for_status()
    waited = time.monotonic() - started
    running = engine.in_background("12+34=", tokens=400)
    engine.post("/pause_generation", {"mode": "retract"}).raise_for_status()
    started = time.monotonic()
    engine.update(second, "third").raise_for_status()
    assert time.monotonic() - started < waited / 3
    engine.post("/continue_generation", {}).raise_for_status()
    running.result(timeout=60)


def test_greedy_output_repeats_beside_other_requests_and_sampled_output_needs_not(engine: RunningEngine) -> None:
    alone = engine.generate("12+34=", tokens=40)["output_ids"]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(engine.generate, "12+34=", tokens=40) for _ in range(8)]
        assert [answer.result()["output_ids"] for answer in asked] == [alone] * 8
    hot = {"temperature": 1.0, "sampling_seed": 1}
    drawn = {tuple(engine.generate("12+34=", tokens=40, sampling_params=hot)["output_ids"]) for _ in range(4)}
    assert len(drawn) > 1


async def test_two_datasets_run_on_one_engine_at_once_and_every_sample_carries_its_version(
    engine: RunningEngine, second: Path
) -> None:
    pinned = await pin(lease(engine, second), snapshot_of(second, 10))
    problems = [Problem(id=f"p{n}", prompt=f"{n}+1=", answer=str(n + 1), entry={}) for n in range(24)]
    greedy = dataset("greedy", sampling=Sampling(temperature=0.0, max_new_tokens=16))
    sampled = dataset("sampled", samples_per_prompt=2, sampling=Sampling(temperature=1.0, top_p=0.9, max_new_tokens=16))
    runs = (run_samples(pinned, spec, problems, str) for spec in (greedy, sampled))
    async with asyncio.timeout(120):
        done = await gather_all(runs)
    assert [len(samples) for samples in done] == [24, 48]
    assert {sample.weight_versions for samples in done for sample in samples} == {(pinned.version.token,)}
    assert SampleOutcome.INFRA_ERROR not in {sample.outcome for samples in done for sample in samples}


async def test_an_update_in_the_middle_of_a_dataset_is_a_pin_violation(
    engine: RunningEngine, first: Path, second: Path
) -> None:
    pinned = await pin(lease(engine, second), snapshot_of(second, 10))
    problems = [Problem(id=f"p{n}", prompt=f"{n}+1=", answer="7", entry={}) for n in range(200)]
    spec = dataset("disturbed", sampling=Sampling(temperature=0.0, max_new_tokens=64))
    running = asyncio.create_task(run_samples(pinned, spec, problems, str))
    async with EngineClient(engine.base_url, KEY) as client:
        await asyncio.sleep(0.5)
        await client.update_weights(str(first), "somebody else's", 60)
    with pytest.raises(PinViolation, match="somebody else's"):
        await running


def test_the_control_endpoints_want_the_key(engine: RunningEngine) -> None:
    stranger = RunningEngine(engine.base_url)
    assert {stranger.get(path).status_code for path in ("/health", "/ready")} == {200}
    paths = ("/model_info", "/server_info", "/v1/loads")
    assert {stranger.get(path).status_code for path in paths} == {401}
    bodies = {"/update_weights_from_disk": {"model_path": "/x"}, "/weights_checker": {"action": "checksum"}, "/generate": {}}
    assert {stranger.post(path, body).status_code for path, body in bodies.items()} == {401}

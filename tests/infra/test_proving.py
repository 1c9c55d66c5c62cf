"""An engine that names no algorithm for its checksums is proved by what the snapshot's bytes make them, or by comparison."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from infra.checksum_records import ChecksumRecords
from infra.digests import digest_file
from infra.errors import PinViolation, SnapshotInvalid
from infra.model import EngineProof, EngineRef, EvalPoint, Manifest, ProofLevel, SnapshotRef, TensorEntry
from infra.pinning import pin
from infra.reproduction import Coverage, reproduce, sources
from infra.reproduction.algorithms import on_gpu
from infra.snapshot import assemble
from infra.store import Store
from tests.fakes.engine import FakeEngine, tensors_of
from tests.fakes.wire import Answer
from tests.infra.checkpoints import NAMES, write_safetensors
from tests.infra.pinned import Fleet, fleet

CONFIGURATION = "embedded-in-a-test"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


@pytest.fixture(params=[1, 2])
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, request.param) as made:
        for engine in made.engines:
            engine.says_algorithm = False
        yield made


async def proofs(engines: Fleet, snapshot: SnapshotRef, store: Store | None) -> tuple[EngineProof, ...]:
    return (await pin(engines.lease(snapshot, CONFIGURATION), snapshot, store)).proofs


async def levels(engines: Fleet, snapshot: SnapshotRef, store: Store | None) -> set[ProofLevel]:
    return {proof.level for proof in await proofs(engines, snapshot, store)}


async def test_an_honest_engine_is_proved_by_content_without_a_store_too(engines: Fleet, store: Store) -> None:
    for kept in (None, store):
        found = await proofs(engines, engines.new, kept)
        assert {(p.level, p.tensors, p.tensors_proved) for p in found} == {(ProofLevel.CONTENT, 5, 5)}


async def test_what_only_the_engine_can_lay_out_is_recorded_at_its_first_load_and_compared_at_the_next(
    engines: Fleet, store: Store
) -> None:
    for engine in engines.engines:
        engine.packed = {NAMES[0]}
    first = await proofs(engines, engines.new, store)
    assert {(p.level, p.tensors_proved) for p in first} == {(ProofLevel.AGREEMENT, 4)}
    assert await levels(engines, engines.old, store) == {ProofLevel.AGREEMENT}
    assert await levels(engines, engines.new, store) == {ProofLevel.RECORDED}


async def test_engines_of_another_configuration_have_records_of_their_own(engines: Fleet, store: Store) -> None:
    await proofs(engines, engines.new, store)
    for engine in engines.engines:
        engine.packed = set(NAMES)
    lease = engines.lease(engines.new, "packed")
    assert {proof.level for proof in (await pin(lease, engines.new, store)).proofs} == {ProofLevel.AGREEMENT}
    assert ChecksumRecords(store, "packed").of(engines.new.manifest.snapshot_digest) is not None


def _label_only(engine: FakeEngine) -> None:
    engine.label_only = True


def _partial(engine: FakeEngine) -> None:
    engine.loads_only = 3


LIES: dict[str, Callable[[FakeEngine], None]] = {"label only": _label_only, "partial load": _partial}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
async def test_a_load_that_leaves_tensors_as_they_were_is_caught_by_engine_and_tensor(
    engines: Fleet, store: Store, lie: str, packed: bool
) -> None:
    for engine in engines.engines:
        engine.packed = set(NAMES) if packed else set()
    await proofs(engines, engines.old, store)
    for engine in engines.engines:
        LIES[lie](engine)
    why = f"is still that of {engines.old.version.token}" if packed else "is not the snapshot's"
    with pytest.raises(PinViolation, match=rf"engine engine-0 .* of 5 tensors, the first is \S+, which {why}"):
        await proofs(engines, engines.new, store)


@pytest.mark.parametrize("lie", LIES)
async def test_one_engine_that_holds_something_else_is_caught_by_what_its_peer_holds(tmp_path: Path, lie: str) -> None:
    with fleet(tmp_path, 2) as two:
        for engine in two.engines:
            engine.says_algorithm = False
        await proofs(two, two.old, None)
        LIES[lie](two.engines[1])
        with pytest.raises(PinViolation, match="engine-1 holds other weights") as caught:
            await proofs(two, two.new, None)
    assert set(caught.value.reported) == {"engine-1"}


async def test_a_load_unlike_the_first_verified_one_is_caught_by_engine_and_tensor(engines: Fleet, store: Store) -> None:
    for engine in engines.engines:
        engine.packed = set(NAMES)
    await proofs(engines, engines.new, store)
    await proofs(engines, engines.old, store)
    for engine in engines.engines:
        engine.packed = set(NAMES[1:])
    with pytest.raises(PinViolation, match=f"the first is {NAMES[0]}, which is not what it was at the first verified load"):
        await proofs(engines, engines.new, store)


async def test_a_tensor_that_no_snapshot_has_keeps_a_proof_from_being_one_of_content(engines: Fleet, store: Store) -> None:
    for engine in engines.engines:
        engine.tensors["vision.weight"] = "f" * 32
        engine.extra_tensor = True
    assert await levels(engines, engines.new, store) == {ProofLevel.AGREEMENT}


async def test_the_parts_of_several_ranks_are_told_apart_and_not_taken_for_whole_tensors(engines: Fleet, store: Store) -> None:
    for engine in engines.engines:
        engine.ranks = 2
    found = await proofs(engines, engines.new, store)
    assert {(p.level, p.tensors, p.tensors_proved) for p in found} == {(ProofLevel.AGREEMENT, 10, 0)}


async def test_a_folder_without_a_file_of_the_manifest_is_no_snapshot(engines: Fleet) -> None:
    entry = engines.new.manifest.tensors[NAMES[0]]
    (Path(engines.new.location.removeprefix("file://")) / entry.file).unlink()
    with pytest.raises(SnapshotInvalid, match="is gone, which the manifest promises") as caught:
        await proofs(engines, engines.new, None)
    assert caught.value.subject == entry.file


@pytest.mark.parametrize("damage", ["gone", "other"])
async def test_a_folder_that_is_not_what_the_manifest_says_is_no_snapshot(engines: Fleet, damage: str) -> None:
    folder = Path(engines.new.location.removeprefix("file://"))
    file = engines.new.manifest.tensors[NAMES[0]].file
    held = {name: data for name, data in tensors_of(folder).items() if engines.new.manifest.tensors[name].file == file}
    held[NAMES[0]] = bytes(64)
    if damage == "gone":
        held.pop(NAMES[0])
    write_safetensors(folder / file, held)
    with pytest.raises(SnapshotInvalid, match=NAMES[0]) as caught:
        await proofs(engines, engines.new, None)
    assert caught.value.subject == NAMES[0]


async def test_a_folder_on_another_machine_is_read_there_or_leaves_agreement(
    engines: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = engines.lease(engines.new)
    await pin(lease, engines.new)
    for engine in engines.engines:
        monkeypatch.setattr(engine, "_update", lambda body, engine=engine: _labelled(engine, body))
    elsewhere = replace(lease, engines=tuple(replace(one, checkpoint_path="/on/another/node") for one in lease.engines))
    assert {proof.level for proof in (await pin(elsewhere, engines.new)).proofs} == {ProofLevel.AGREEMENT}

    async def there(engine: EngineRef, held: Mapping[str, str], manifest: Manifest) -> Coverage:
        assert engine.checkpoint_path == "/on/another/node"
        return reproduce(held, Path(engines.new.location.removeprefix("file://")), manifest)

    assert {proof.level for proof in (await pin(elsewhere, engines.new, None, there)).proofs} == {ProofLevel.CONTENT}


def _labelled(engine: FakeEngine, body: dict[str, str]) -> object:
    engine.version = body["weight_version"]
    return Answer({"success": True, "message": "", "num_paused_requests": 0})


def _entry(file: str = "f") -> TensorEntry:
    return TensorEntry(dtype="BF16", shape=(2, 2), file=file, digest="d")


def test_a_fused_tensor_is_made_of_its_parts_in_their_order_and_of_all_or_none() -> None:
    attention, experts = "model.layers.0.self_attn", "model.layers.0.mlp.experts"
    held = [f"{attention}.{part}_proj.bias" for part in "qkv"]
    held += [f"{experts}.{n}.{part}_proj.weight" for n in range(2) for part in ("gate", "up", "down")]
    promised = {name: _entry() for name in held}
    assert sources(f"{attention}.qkv_proj.bias", promised) == held[:3]
    assert sources(f"{experts}.w13_weight", promised) == [held[3], held[4], held[6], held[7]]
    assert sources(f"{experts}.w2_weight", promised) == [held[5], held[8]]
    promised.pop(held[1])
    assert sources(f"{attention}.qkv_proj.bias", promised) == []
    assert sources("model.rotary.cache", promised) == []


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor]) -> Manifest:
    save_file(tensors, folder / "model.safetensors")
    digest = digest_file(folder / "model.safetensors")
    return assemble({"model.safetensors": digest.entry}, digest.tensors, EvalPoint(run="run", step=0))


def checksum(tensor: torch.Tensor) -> str:
    """As SGLang's on a CPU, over the tensor as it lies in memory."""
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("served", [torch.float32, torch.bfloat16, torch.float16])
def test_a_checksum_is_reproduced_in_whatever_dtype_it_is_served(
    tmp_path: Path, stored: torch.dtype, served: torch.dtype
) -> None:
    values = torch.cat([torch.randn(60), torch.tensor([0.0, -0.0, 1e-7, 7e4])]).to(stored)
    manifest = checkpoint(tmp_path, {"model.norm.weight": values})
    proved = reproduce({"model.norm.weight": checksum(values.to(served))}, tmp_path, manifest).whole
    assert proved == (served in {stored, torch.float16, torch.bfloat16})


def test_a_vocabulary_is_reproduced_with_its_padding_and_without(tmp_path: Path) -> None:
    rows = torch.randn(100, 4)
    manifest = checkpoint(tmp_path, {"lm_head.weight": rows})
    padded = torch.cat([rows, torch.zeros(28, 4)])
    for held in (rows, padded):
        assert reproduce({"lm_head.weight": checksum(held)}, tmp_path, manifest).whole
    assert not reproduce({"lm_head.weight": checksum(padded + 1)}, tmp_path, manifest).whole


@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_of_tensor_parallel_ranks_are_reproduced_and_all_of_them_make_the_whole(tmp_path: Path, size: int) -> None:
    """Two key-value heads, so that of four ranks two hold the same one."""
    (tmp_path / "config.json").write_text('{"num_key_value_heads": 2}')
    layer = "model.layers.0.self_attn"
    tensors = {f"{layer}.{part}_proj.weight": torch.randn(rows, 8) for part, rows in (("q", 16), ("k", 4), ("v", 4))}
    tensors[f"{layer}.o_proj.weight"] = torch.randn(8, 16)
    tensors["model.norm.weight"] = torch.randn(8)
    manifest = checkpoint(tmp_path, tensors)
    query, key, value, output, norm = tensors.values()
    held: dict[str, str] = {}
    for rank in range(size):
        head = rank * 2 // size
        fused = [query.chunk(size)[rank], key.chunk(2)[head], value.chunk(2)[head]]
        held[f"{layer}.qkv_proj.weight@{rank}/{size}"] = checksum(torch.cat(fused))
        held[f"{layer}.o_proj.weight@{rank}/{size}"] = checksum(output.chunk(size, dim=1)[rank])
        held[f"model.norm.weight@{rank}/{size}"] = checksum(norm)
    assert reproduce(held, tmp_path, manifest).whole
    last = {name: digest for name, digest in held.items() if not name.endswith(f"@{size - 1}/{size}")}
    coverage = reproduce(last, tmp_path, manifest)
    assert (set(coverage.proved), coverage.whole) == (set(last), False)
    swapped = {name.replace("@0/", "@x/").replace("@1/", "@0/").replace("@x/", "@1/"): held[name] for name in held}
    assert not reproduce(swapped, tmp_path, manifest).whole


def test_a_checksum_of_a_gpu_is_reproduced(tmp_path: Path) -> None:
    """Values from SGLang's own kernel, run by Triton's interpreter; tests/engines/test_sglang_process.py runs it again."""
    known = {1: "b8b5cff37fd7f33a", 5: "6d87e17c03314840", 40000: "904f035acb02b103", 1081350: "4443b995e5ffc64a"}
    assert {n: on_gpu(random.Random(n).randbytes(n)) for n in known} == known
    values = torch.randn(300, 7)
    manifest = checkpoint(tmp_path, {"a.weight": values, "b.weight": values + 1})
    half = {name: on_gpu(t.half().numpy().tobytes()) for name, t in (("a.weight", values), ("b.weight", values + 1))}
    assert reproduce(half, tmp_path, manifest).whole

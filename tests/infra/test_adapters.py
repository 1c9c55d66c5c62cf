"""A LoRA adapter is valid only for its base; it is exported alone, with its base named by digest."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from infra import errors, leases
from infra.foreign import describe_once
from infra.model import BaseModelRef, DatasetSpec, EvalPoint, EvalRequest, SnapshotSource, StagedPart, Suite
from infra.snapshot import describe, new_prefix, read_manifest, validate
from infra.store import Store
from infra.validation.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    adapter_files,
    check_adapter,
    examine_adapter,
    read_adapter,
)
from infra.validation.examination import examine
from infra.validation.layout import read_contents
from infra.validation.readers import LocalFolder
from tasks.export import _send_parts, export
from tests.infra import models
from tests.infra.adapters import make_adapter
from tests.infra.examples import POINT
from tests.infra.models import Tensor, read_tensors

QUERY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
Change = Callable[[dict[str, Tensor]], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.model("untied Qwen3", tmp_path_factory.mktemp("adapted") / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return make_adapter(base, tmp_path / "adapter")


def respell(change: Change) -> Callable[[Path], object]:
    """The adapter's tensors, changed."""

    def spoil(folder: Path) -> None:
        held = read_tensors_of(folder)
        change(held)
        models._write(folder / ADAPTER_WEIGHTS, held)

    return spoil


def read_tensors_of(folder: Path) -> dict[str, Tensor]:
    (folder / "model.safetensors").write_bytes((folder / ADAPTER_WEIGHTS).read_bytes())
    held = read_tensors(folder)
    (folder / "model.safetensors").unlink()
    return held


def rename(old: str, new: str) -> Change:
    return lambda held: held.update({name.replace(old, new): held.pop(name) for name in list(held)})


def config(**changes: Any) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        file = folder / ADAPTER_CONFIG
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return spoil


def nan(held: dict[str, Tensor]) -> None:
    held[QUERY] = replace(held[QUERY], data=struct.pack("<f", math.nan) + held[QUERY].data[4:])


SPOILED: dict[str, tuple[type[errors.SnapshotInvalid], str, Callable[[Path], object]]] = {
    "no weights": (errors.WeightsMissing, ADAPTER_WEIGHTS, lambda folder: (folder / ADAPTER_WEIGHTS).unlink()),
    "pickled weights": (
        errors.PickleOnly,
        "adapter_model.bin",
        lambda folder: (folder / ADAPTER_WEIGHTS).rename(folder / "adapter_model.bin"),
    ),
    "truncated": (
        errors.FileDamaged,
        ADAPTER_WEIGHTS,
        lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes((folder / ADAPTER_WEIGHTS).read_bytes()[:-4]),
    ),
    "config is no JSON": (errors.AdapterInvalid, ADAPTER_CONFIG, lambda folder: (folder / ADAPTER_CONFIG).write_text("{")),
    "another method": (errors.AdapterInvalid, ADAPTER_CONFIG, config(peft_type="IA3")),
    "no alpha": (errors.AdapterInvalid, ADAPTER_CONFIG, config(lora_alpha=None)),
    "an alpha that is a word": (errors.AdapterInvalid, ADAPTER_CONFIG, config(alpha_pattern={"q_proj": "big"})),
    "an alpha pattern that is none": (errors.AdapterInvalid, ADAPTER_CONFIG, config(alpha_pattern={"*": 3})),
    "nested without end": (
        errors.AdapterInvalid,
        ADAPTER_CONFIG,
        lambda folder: (folder / ADAPTER_CONFIG).write_text("[" * 200_000),
    ),
    "rank zero": (errors.AdapterInvalid, ADAPTER_CONFIG, config(r=0)),
    "no module of the base": (
        errors.AdapterUnmatched,
        "transformer.layers.0.mlp.down_proj.weight",
        respell(rename("base_model.model.model.", "base_model.model.transformer.")),
    ),
    "nothing adapted": (errors.AdapterUnmatched, ADAPTER_WEIGHTS, respell(lambda held: held.clear())),
    "half a pair": (
        errors.TensorMissing,
        "model.layers.0.self_attn.q_proj.weight",
        respell(lambda held: held.pop(QUERY)),
    ),
    "another width": (
        errors.ShapeMismatch,
        "model.layers.0.self_attn.q_proj.weight",
        respell(lambda held: held.update({QUERY: replace(held[QUERY], shape=(8, 16))})),
    ),
    "a tensor of nobody": (
        errors.TensorUnexpected,
        "base_model.model.value_head.weight",
        respell(lambda held: held.update({"base_model.model.value_head.weight": Tensor("F32", (1,), bytes(4))})),
    ),
    "NaN": (errors.NotFinite, QUERY, respell(nan)),
}


@pytest.mark.parametrize(
    "made",
    [
        {},
        {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 2}},
        {"use_dora": True},
    ],
    ids=["linear", "embedding and head", "ranks of their own", "DoRA"],
)
def test_what_peft_saves_is_valid_for_its_base(base: Path, tmp_path: Path, made: dict[str, Any]) -> None:
    folder = make_adapter(base, tmp_path / "adapter", **made)
    contents = examine_adapter(LocalFolder(folder), LocalFolder(base))
    assert adapter_files(contents) == [ADAPTER_CONFIG, ADAPTER_WEIGHTS]
    verdict = examine(LocalFolder(folder))
    assert verdict.faults == ()
    assert str(base) in verdict.notes[0]


@pytest.mark.parametrize("name", SPOILED)
def test_each_fault_is_refused_by_its_own_class_naming_its_subject(base: Path, adapter: Path, name: str) -> None:
    kind, subject, spoil = SPOILED[name]
    spoil(adapter)
    with pytest.raises(kind) as caught:
        examine_adapter(LocalFolder(adapter), LocalFolder(base))
    assert (type(caught.value), caught.value.subject) == (kind, subject)
    assert [(type(fault), fault.subject) for fault in examine(LocalFolder(adapter)).faults][:1] == [(kind, subject)]


def test_an_adapter_of_another_base_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = models.model("Qwen3-MoE", tmp_path / "other")
    faults = examine(LocalFolder(adapter), base=str(other)).faults
    assert {type(fault) for fault in faults} == {errors.AdapterUnmatched}


def test_a_base_that_is_nowhere_named_or_not_there_is_said(adapter: Path) -> None:
    config(base_model_name_or_path=None)(adapter)
    [fault] = examine(LocalFolder(adapter)).faults
    assert "names no base_model_name_or_path" in str(fault)
    config(base_model_name_or_path="nobody/has-this")(adapter)
    with pytest.raises(errors.SnapshotMissing, match="hf download nobody/has-this"):
        examine(LocalFolder(adapter))


def request(source: Path, store: Store, **changes: Any) -> EvalRequest:
    suite = Suite(name="suite", datasets=(DatasetSpec(name="rows", source="/rows.jsonl"),))
    return EvalRequest(point=POINT, source=SnapshotSource(path=str(source), **changes), suite=suite, store_url=store.url)


async def test_an_adapter_is_exported_alone_with_its_base_named_by_digest(base: Path, adapter: Path, tmp_path: Path) -> None:
    store, prefix = Store((tmp_path / "store").as_uri()), new_prefix(POINT)
    leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export")
    with disable_run_logger():
        snapshot = await export.fn(request(adapter, store, staged=True), prefix)
    digest = describe(base, validate(base), POINT).snapshot_digest
    assert snapshot.manifest.base == BaseModelRef(location=base.as_uri(), snapshot_digest=digest)
    assert read_manifest(store, prefix) == snapshot.manifest
    assert sorted(snapshot.manifest.files) == [ADAPTER_CONFIG, ADAPTER_WEIGHTS]
    assert set(store.list(prefix)) == {f"{prefix}/{name}" for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, "manifest.json")}


def parts_of(adapter: Path, how: str) -> tuple[StagedPart, ...]:
    """The adapter, which lies as exporters stage it; the second host's folder is `apart`."""
    apart, shards = adapter.with_name("apart"), (ADAPTER_WEIGHTS,)
    apart.mkdir()
    if how == "weights elsewhere":
        (adapter / ADAPTER_WEIGHTS).rename(apart / ADAPTER_WEIGHTS)
        return StagedPart(path=str(adapter)), StagedPart(path=str(apart), shards=shards)
    first = StagedPart(path=str(adapter), shards=() if how == "one host" else shards)
    return (first, StagedPart(path=str(apart))) if how == "nothing elsewhere" else (first,)


@pytest.mark.parametrize("how", ["one host", "one host, named", "nothing elsewhere", "weights elsewhere"])
async def test_an_adapter_that_other_hosts_have_is_exported_as_one_that_lies_here(
    base: Path, adapter: Path, tmp_path: Path, how: str
) -> None:
    store, prefixes = Store((tmp_path / "store").as_uri()), [new_prefix(POINT), new_prefix(POINT)]
    (adapter / "chat_template.jinja").write_text("own")
    (adapter / "config.json").write_text("{}")
    for prefix in prefixes:
        leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export")
    with disable_run_logger():
        here = await export.fn(request(adapter, store, staged=True), prefixes[0])
        parts = parts_of(adapter, how)
        snapshot = await _send_parts(request(adapter, store, staged=True, parts=parts), parts, prefixes[1])
    assert snapshot.manifest == here.manifest == read_manifest(store, prefixes[1])
    assert sorted(snapshot.manifest.files) == [ADAPTER_CONFIG, ADAPTER_WEIGHTS, "chat_template.jinja"]
    assert {key.rpartition("/")[2] for key in store.list(prefixes[1])} == {*snapshot.manifest.files, "manifest.json"}


async def test_an_adapter_that_other_hosts_have_is_refused_if_it_is_of_another_base(adapter: Path, tmp_path: Path) -> None:
    other, store, prefix = (
        models.model("Qwen3-MoE", tmp_path / "other"),
        Store((tmp_path / "store").as_uri()),
        new_prefix(POINT),
    )
    leases.acquire(store, prefix, owner=leases.owner_of(POINT), purpose="export")
    parts = parts_of(adapter, "weights elsewhere")
    with disable_run_logger(), pytest.raises(errors.AdapterUnmatched):
        await export.fn(request(adapter, store, staged=True, parts=parts, base=str(other)), prefix)
    assert not store.exists(f"{prefix}/manifest.json")


async def test_the_same_adapter_on_another_base_is_another_snapshot(base: Path, adapter: Path, tmp_path: Path) -> None:
    other = models.model("untied Qwen3", tmp_path / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", 0.5))
    store = Store((tmp_path / "store").as_uri())
    with disable_run_logger():
        digests = [
            (await export.fn(request(adapter, store, base=str(named)), "")).manifest.snapshot_digest for named in (base, other)
        ]
    assert digests[0] != digests[1]


def test_a_foreign_checkpoint_is_digested_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    class Counting(Store):
        created = 0

        def create(self, key: str, data: bytes) -> None:
            type(self).created += 1
            super().create(key, data)

    folder, store = models.model("tied Qwen3", tmp_path / "model"), Counting((tmp_path / "store").as_uri())
    first = describe_once(store, folder, validate(folder), POINT)
    assert first == describe(folder, validate(folder), POINT)
    again = describe_once(store, folder, validate(folder), EvalPoint(run="other", step=1))
    assert (again.run, again.step, again.snapshot_digest) == ("other", 1, first.snapshot_digest)
    assert store.created == 1
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", 0.5))
    assert describe_once(store, folder, validate(folder), POINT).snapshot_digest != first.snapshot_digest
    assert store.created == 2
    for note in store.list("digests"):
        store.write(note, b"spoiled")
    assert describe_once(store, folder, validate(folder), POINT) == describe(folder, validate(folder), POINT)


def test_an_adapter_of_a_quantised_base_is_told_to_name_the_one_before(base: Path, adapter: Path) -> None:
    spans = read_contents(LocalFolder(base)).spans
    weight = QUERY.removeprefix("base_model.model.").replace("lora_A.", "")
    found: list[errors.SnapshotInvalid] = []
    check_adapter(read_adapter(LocalFolder(adapter)).spans, spans, "here", found.append)
    assert found == []
    spans[weight] = replace(spans[weight], dtype="F8_E4M3")
    check_adapter(read_adapter(LocalFolder(adapter)).spans, spans, "here", found.append)
    [fault] = found
    assert isinstance(fault, errors.AdapterUnmatched)
    assert f"changes {weight}, which its base has as F8_E4M3: name the base before it was quantised" in str(fault)

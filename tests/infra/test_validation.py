"""A checkpoint is known to be complete and sane before any GPU is taken, from headers and ranged reads alone."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from infra.errors import (
    ChatTemplateMissing,
    EosDisagrees,
    HeadMissing,
    NotFinite,
    RemoteCodeRefused,
    ShardMissing,
    SnapshotInvalid,
    SnapshotMissing,
    TensorMissing,
    TokenizerTooLarge,
)
from infra.snapshot import validate
from infra.store import Store
from infra.validation.examination import examine, faults, validate_checkpoint
from infra.validation.readers import CheckpointReader, LocalFolder, Range, StorePrefix
from infra.validation.resolve import resolve_checkpoint
from infra.validation.values import SAMPLE_BYTES
from tests.infra.checkpoints import INDEX
from tests.infra.invalid_checkpoints import SECOND
from tests.infra.models import VALID, WORDS, Tensor, model, read_tensors, spread
from tests.infra.spoiled_models import FAULTS, NORM, QUERY, WIDE, Fault

BASE = "sharded Qwen3"


@pytest.fixture(params=["folder", "store", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        request.getfixturevalue("s3")
    return str(request.param)


def reader_at(place: str, folder: Path, request: pytest.FixtureRequest) -> CheckpointReader:
    if place == "folder":
        return LocalFolder(folder)
    if place == "store":
        return StorePrefix(Store(folder.parent.as_uri()), folder.name)
    store = Store(f"s3://{request.getfixturevalue('s3').bucket}/{uuid.uuid4().hex}")
    for file in folder.iterdir():
        store.upload(file, f"a/{file.name}")
    return StorePrefix(store, "a")


@pytest.mark.parametrize("name", VALID)
def test_a_valid_checkpoint_passes_and_its_files_are_listed(
    name: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = model(name, tmp_path / "c")
    verdict = examine(reader_at(place, folder, request))
    assert verdict.faults == ()
    assert verdict.notes == ()
    assert sorted(verdict.files) == sorted(file.name for file in folder.iterdir())
    assert validate_checkpoint(LocalFolder(folder)) == validate(folder) == list(verdict.files)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.links], ids=str)
def test_each_fault_is_refused_by_its_own_class_naming_its_subject(
    fault: Fault, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = model(fault.of, tmp_path / "c")
    fault.spoil(folder)
    assert_refused(reader_at(place, folder, request), fault)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.links], ids=str)
def test_what_leaves_the_folder_or_is_no_file_is_refused_unopened(fault: Fault, tmp_path: Path) -> None:
    folder = model(fault.of, tmp_path / "c")
    fault.spoil(folder)
    assert_refused(LocalFolder(folder), fault)


def assert_refused(reader: CheckpointReader, fault: Fault) -> None:
    with pytest.raises(SnapshotInvalid) as caught:
        validate_checkpoint(reader, needs_chat_template=True)
    refusal = caught.value
    assert type(refusal) is fault.kind
    assert refusal.subject == fault.subject or not fault.subject
    assert refusal.subject.removeprefix("layers.") in str(refusal)
    assert (fault.kind, refusal.subject) in {(type(f), f.subject) for f in faults(reader, needs_chat_template=True)}


def test_all_that_is_wrong_is_collected(tmp_path: Path) -> None:
    folder = model(BASE, tmp_path / "c")
    for fault in FAULTS:
        if fault.name in ("lost tensor", "lost head", "NaN at the start", "eos of another token", "no chat template"):
            fault.spoil(folder)
    kinds = [TensorMissing, HeadMissing, NotFinite, EosDisagrees, ChatTemplateMissing]
    found = faults(LocalFolder(folder), needs_chat_template=True)
    assert sorted(type(fault).__name__ for fault in found) == sorted(kind.__name__ for kind in kinds)


def test_a_lost_shard_is_one_fault_and_not_one_for_each_tensor_in_it(tmp_path: Path) -> None:
    folder = model(BASE, tmp_path / "c")
    (folder / SECOND).unlink()
    assert [type(fault) for fault in faults(LocalFolder(folder))] == [ShardMissing]


def test_of_many_lost_tensors_one_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    folder = model(BASE, tmp_path / "c")
    spread(folder, {name: tensor for name, tensor in read_tensors(folder).items() if ".layers.1." not in name})
    (fault,) = faults(LocalFolder(folder))
    assert isinstance(fault, TensorMissing)
    assert "(and 10 more)" in str(fault)


def test_the_head_that_a_tied_model_repeats_is_not_a_fault(tmp_path: Path) -> None:
    folder = model("tied Qwen3", tmp_path / "c")
    held = read_tensors(folder)
    spread(folder, {**held, "lm_head.weight": held["model.embed_tokens.weight"]}, 1)
    assert faults(LocalFolder(folder)) == []


def test_experts_that_are_fused_as_in_memory_pass_too(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = model("Qwen3-MoE", tmp_path / "c")
    module = AutoModelForCausalLM.from_pretrained(folder)
    module.save_pretrained(tmp_path / "fused", save_original_format=False)
    shutil.copy(tmp_path / "fused" / "model.safetensors", folder)
    assert "model.layers.0.mlp.experts.down_proj" in read_tensors(folder)
    assert faults(LocalFolder(folder)) == []


def test_an_architecture_that_transformers_does_not_know_is_said_and_the_rest_checked(tmp_path: Path) -> None:
    folder = model(BASE, tmp_path / "c")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "novel"}))
    verdict = examine(LocalFolder(folder))
    assert verdict.faults == ()
    assert "does not know model_type 'novel'" in verdict.notes[0]


def test_a_checkpoint_with_code_passes_only_where_that_is_trusted_and_none_of_it_is_run(tmp_path: Path) -> None:
    folder = model(BASE, tmp_path / "c")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "novel", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert [type(fault) for fault in faults(LocalFolder(folder))] == [RemoteCodeRefused]
    assert faults(LocalFolder(folder), trust_remote_code=True) == []
    assert not (tmp_path / "ran").exists()


def test_a_link_inside_the_folder_and_the_blobs_of_a_hub_cache_are_no_fault(tmp_path: Path) -> None:
    made = model(BASE, tmp_path / "made")
    repository = tmp_path / "models--o--n"
    folder = repository / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(made.iterdir()):
        file.rename(repository / "blobs" / str(number))
        (folder / file.name).symlink_to(f"../../blobs/{number}")
    assert faults(LocalFolder(folder)) == []


def test_links_and_pickles_that_are_no_part_of_the_snapshot_are_left_alone(tmp_path: Path) -> None:
    folder = model(BASE, tmp_path / "c")
    (folder / "optimizer.pt").symlink_to("/etc/passwd")
    (folder / "training_args.bin").write_bytes(b"\x80")
    (folder / "loop").symlink_to("loop")
    assert faults(LocalFolder(folder)) == []


@pytest.mark.parametrize(
    ("of", "name"),
    [
        ("untied Qwen3", "consolidated.safetensors"),
        ("untied Qwen3", "adapter_model.safetensors"),
        ("untied Qwen3", "._model.safetensors"),
        (BASE, "consolidated.safetensors"),
        (BASE, "value_head.safetensors"),
    ],
)
def test_weights_beside_the_snapshots_own_that_no_engine_loads_are_left_alone(of: str, name: str, tmp_path: Path) -> None:
    folder = model(of, tmp_path / "c")
    (folder / name).write_bytes(b"anything")
    verdict = examine(LocalFolder(folder))
    assert verdict.faults == ()
    assert name not in verdict.files


def test_what_is_nowhere_is_missing_not_invalid(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "c").mkdir()
    reader = reader_at(place, tmp_path / "c", request) if place != "folder" else LocalFolder(tmp_path / "nowhere")
    with pytest.raises(SnapshotMissing):
        validate_checkpoint(reader)


class CountingFolder(LocalFolder):
    """A folder that notes how many bytes of weights are read."""

    read = 0

    def read_range(self, name: str, start: int, end: int) -> bytes:
        data = super().read_range(name, start, end)
        self.read += len(data) if name.endswith(".safetensors") else 0
        return data


def test_of_large_tensors_only_samples_are_read(tmp_path: Path) -> None:
    folder = model("untied Qwen3", tmp_path / "c")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    config.intermediate_size = 40_000
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    reader = CountingFolder(folder)
    assert faults(reader) == []
    assert reader.read < (folder / "model.safetensors").stat().st_size / 20


def test_a_store_is_asked_for_a_bounded_number_of_samples_and_that_is_said(tmp_path: Path) -> None:
    reader = StorePrefix(Store(tmp_path.as_uri()), "c")
    reader.max_reads = 30
    model(BASE, tmp_path / "c")
    verdict = examine(reader)
    assert verdict.faults == ()
    assert "one tensor of 3" in verdict.notes[0]


def test_ranges_come_in_the_order_that_was_asked_for(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "x").write_bytes(bytes(range(256)))
    reader = reader_at(place, tmp_path / "c", request)
    ranges = [Range("x", n, n + 3) for n in range(250, 0, -7)]
    assert list(reader.read_ranges(ranges)) == [bytes(range(r.start, r.end)) for r in ranges]
    assert reader.read_range("x", 254, 300) == bytes([254, 255])
    assert reader.read_range("x", 7, 7) == b""


def test_names_used_here_are_names_of_the_model(tmp_path: Path) -> None:
    held = read_tensors(model(BASE, tmp_path / "c"))
    assert {NORM, QUERY} <= held.keys()
    assert len(held[WIDE].data) > 3 * SAMPLE_BYTES


def renamed(folder: Path, names: Sequence[str]) -> None:
    """Gives the shards other names, in files and index."""
    old = sorted(path.name for path in folder.glob("model-*.safetensors"))
    index = (folder / INDEX).read_text()
    for before, after in zip(old, names, strict=True):
        (folder / before).rename(folder / after)
        index = index.replace(before, after)
    (folder / INDEX).write_text(index)


@pytest.mark.parametrize(
    "names",
    [
        [f"model-{n:05d}-of-000003.safetensors" for n in (1, 2, 3)],  # DeepSeek-V3
        [f"model-{n}-of-3.safetensors" for n in (1, 2, 3)],  # Kimi-K2
        [f"model-{n:05d}-of-00003.safetensors" for n in (0, 1, 2)],
        [f"model-{n:05d}-of-00002.safetensors" for n in (0, 1, 2)],  # gpt-oss
    ],
    ids=lambda names: names[0],
)
def test_shards_are_numbered_in_more_ways_than_one(names: list[str], tmp_path: Path) -> None:
    folder = model(BASE, tmp_path / "c")
    spread(folder, read_tensors(folder), 3)
    renamed(folder, names)
    assert faults(LocalFolder(folder)) == []
    assert set(names) <= set(validate(folder))


def test_of_shards_with_other_digits_a_lost_one_is_named(tmp_path: Path) -> None:
    folder = model(BASE, tmp_path / "c")
    spread(folder, read_tensors(folder), 3)
    renamed(folder, [f"model-{n:05d}-of-000004.safetensors" for n in (1, 2, 4)])
    (fault,) = faults(LocalFolder(folder))
    assert isinstance(fault, ShardMissing)
    assert "names files of 4, but not model-00003-of-000004.safetensors" in str(fault)


def test_a_token_that_stands_for_a_picture_needs_no_row_and_any_other_does(tmp_path: Path) -> None:
    for name, ok in (("image_token", True), ("mask_token", False)):
        folder = model("tied Qwen3", tmp_path / name)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens([f"<new {n}>" for n in range(WORDS - len(tokenizer))])
        tokenizer.add_tokens(["<beyond>"], special_tokens=True)
        tokenizer.save_pretrained(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, name: "<beyond>"}))
        assert [type(fault) for fault in faults(LocalFolder(folder))] == ([] if ok else [TokenizerTooLarge]), name


def test_what_a_model_ignores_has_any_dtype(tmp_path: Path) -> None:
    folder = model("bfloat16 Qwen3", tmp_path / "c")
    old = Tensor("F32", (4,), b"\0" * 16)
    spread(folder, {**read_tensors(folder), "model.layers.0.self_attn.rotary_emb.inv_freq": old}, 1)
    assert faults(LocalFolder(folder)) == []


def test_what_reads_pictures_belongs_to_the_snapshot(tmp_path: Path) -> None:
    folder = model("Qwen3.5 of text and pictures", tmp_path / "c")
    (folder / "preprocessor_config.json").write_text("{}")
    assert "preprocessor_config.json" in validate(folder)


def test_a_home_of_nobody_is_no_checkpoint() -> None:
    with pytest.raises(SnapshotMissing, match="checkpoint folder ~nosuch-user/x does not exist"):
        resolve_checkpoint("~nosuch-user/x")

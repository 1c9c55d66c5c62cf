"""Blocks cover each element of a tensor once or are refused; all ranks make the same plan, in which replicas share the work."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from infra.errors import ConfigError, ShapeMismatch, StagingFailed
from trainer_integration.megatron.mapping import Sizes, known_families, register_family, same, targets_of
from trainer_integration.sharded.blocks import Block, Part, Shape, Target, refuse_gaps, rows_of, side_by_side, stacked, whole
from trainer_integration.sharded.exporter import _parts
from trainer_integration.sharded.files import OneFile, write_rows
from trainer_integration.sharded.plan import Inventory, Piece, Plan, make_plan
from trainer_integration.sharded.ranks import Ranks

PARTS: dict[Part, Shape] = {(0, 2): (4, 6), (1, 2): (4, 6)}
SIZES = Sizes(heads=4, groups=2, head=2, vocabulary=10, tied=False)


def target(shape: Shape, blocks: list[Block]) -> Target:
    return Target(name="t", shape=shape, source="p", blocks=tuple(blocks))


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((8, 6), stacked(PARTS)),
        ((4, 12), side_by_side(PARTS)),
        ((4, 6), [rows_of((0, 2), (4, 6), 0, 4, 0)]),
        ((24,), [Block((0, 2), 0, 1, 24, 0, 24)]),
    ],
)
def test_blocks_that_cover_a_tensor_once_pass(shape: Shape, blocks: list[Block]) -> None:
    refuse_gaps(target(shape, blocks), PARTS)


@pytest.mark.parametrize(
    ("shape", "blocks", "problem"),
    [
        ((9, 6), stacked(PARTS), "make up 8 of 9"),
        ((4, 13), side_by_side(PARTS), "make up|leave a gap|overlap"),
        ((8, 6), [rows_of((0, 2), (4, 6), 0, 4, 0)] * 2, "overlap at 0"),
        ((8, 6), [rows_of((0, 2), (4, 6), 0, 4, 0), rows_of((1, 2), (4, 6), 0, 3, 5)], "leave a gap at 4"),
        ((8, 6), [rows_of((0, 2), (4, 6), 0, 4, 0), rows_of((1, 2), (4, 6), 0, 4, 3)], "overlap at 3"),
        ((5, 6), [rows_of((0, 2), (4, 6), 0, 5, 0)], "reaches out of part"),
    ],
)
def test_gaps_overlaps_and_what_reaches_out_are_refused_by_name(
    shape: tuple[int, ...], blocks: list[Block], problem: str
) -> None:
    with pytest.raises(ShapeMismatch, match=problem) as caught:
        refuse_gaps(target(shape, blocks), PARTS)
    assert caught.value.subject == "t"


def plan_of(nodes: list[str], held: list[list[Piece]], shard_bytes: int = 10_000) -> Plan:
    inventories = [Inventory(node, tuple(pieces)) for node, pieces in zip(nodes, held, strict=True)]
    return make_plan(inventories, lambda name, parts: [whole(name, parts, name)], shard_bytes)


def piece(name: str, rows: int = 8, part: tuple[int, ...] = ()) -> Piece:
    return Piece(name, part, (rows, 4), "F32")


def test_replicas_share_the_work_by_bytes_and_nobody_copies_twice() -> None:
    held = [piece(f"p{n}", rows) for n, rows in enumerate((100, 60, 40, 20))]
    plan = plan_of(["a"] * 2, [held, held])
    copied = [sum(plan.pieces[rank][key].n_bytes for key in writes) for rank, writes in enumerate(plan.writes)]
    assert sorted(key for writes in plan.writes for key in writes) == sorted(one.key for one in held)
    assert max(copied) - min(copied) <= 20 * 4 * 4
    assert plan.transfers == ()


def test_files_number_through_all_nodes_and_say_where_each_tensor_begins() -> None:
    plan = plan_of(["a", "b"], [[piece("p1"), piece("p10"), piece("p2")], [piece("q")]], shard_bytes=128)
    assert [file.name for file in plan.files] == [f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)]
    assert [file.node for file in plan.files] == ["a", "a", "a", "b"]
    assert [name for file in plan.files for name in file.begins] == ["p1", "p2", "p10", "q"]
    (length,) = struct.unpack("<Q", plan.files[0].header[:8])
    header = json.loads(plan.files[0].header[8:])
    assert len(plan.files[0].header) == 8 + length == plan.files[0].begins["p1"]
    assert header["p1"] == {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}
    assert plan.files[0].n_bytes == 8 + length + 128


def test_one_file_holds_all_on_the_first_node_with_its_note_whatever_its_size_and_wherever_most_is_held() -> None:
    inventories = [Inventory("a", (piece("p"),)), Inventory("b", (piece("q", 80),))]
    one = OneFile("all.safetensors", {"note": "n"})
    plan = make_plan(inventories, lambda name, parts: [whole(name, parts, name)], 128, one)
    (file,) = plan.files
    assert (file.name, file.node, list(file.begins)) == ("all.safetensors", "a", ["p", "q"])
    assert json.loads(file.header[8:])["__metadata__"] == {"format": "pt", "note": "n"}
    assert [(sent.piece.name, sent.receiver) for sent in plan.transfers] == [("q", 0)]


def test_a_node_that_stages_nothing_is_no_part_of_the_model_and_the_first_is_for_its_metadata() -> None:
    def told(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
        return [(part.host, part.shards) for part in _parts(plan, Path("/x")).parts]

    inventories = [Inventory(node, (piece("p", part=(n,)),)) for n, node in enumerate("abb")]
    one = OneFile("adapter_model.safetensors", {})
    plan = make_plan(inventories, lambda name, parts: [whole(f"{name}{n}", {n: parts[n]}, name) for n in parts], 128, one)
    assert told(plan) == [("a", ("adapter_model.safetensors",))]
    assert told(plan_of(["a", "b"], [[], [piece("p")]])) == [("a", ()), ("b", ("model.safetensors",))]


def test_what_a_node_lacks_is_sent_to_it_once() -> None:
    parts = {(0, 2): (8, 4), (1, 2): (8, 4)}
    inventories = [Inventory(node, (Piece("p", part, parts[part], "F32"),)) for node, part in zip("ab", parts, strict=True)]

    def layout(name: str, held: Any) -> list[Target]:
        return [Target(name=name, shape=(16, 4), source=name, blocks=tuple(stacked(dict(sorted(held.items())))))]

    plan = make_plan(inventories, layout, 10_000)
    (sent,) = plan.transfers
    assert (sent.sender, sent.receiver, sent.piece.part) == (1, 0, (1, 2))
    assert set(plan.writes[0]) == {("p", part) for part in parts}
    assert plan.writes[1] == {}


def test_the_plan_is_the_same_in_whatever_order_a_rank_lists_its_pieces() -> None:
    held = [piece(f"p{n}", 8 + n % 3) for n in range(40)]
    shuffled = random.Random(0).sample(held, len(held))
    one, other = plan_of(["a"] * 3, [held] * 3), plan_of(["a"] * 3, [shuffled, held, shuffled])
    assert (one.files, one.writes, one.transfers) == (other.files, other.writes, other.transfers)


@pytest.mark.parametrize(
    ("held", "error", "problem"),
    [
        ([[piece("p", 8)], [piece("p", 9)]], ShapeMismatch, r"p is F32 \[9, 4\] on rank 1 and F32 \[8, 4\] on rank 0"),
        ([[piece("p"), piece("p")], []], ConfigError, "rank 0 has part .* of p twice"),
    ],
)
def test_ranks_that_do_not_agree_are_refused(held: list[list[Piece]], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        plan_of(["a", "a"], held)


def test_two_parameters_that_become_one_tensor_are_refused() -> None:
    inventory = Inventory("a", (piece("p"), piece("q")))
    with pytest.raises(ConfigError, match="q and p both become tensor t"):
        make_plan([inventory], lambda name, parts: [whole("t", parts, name)], 10_000)


def test_an_unknown_parameter_is_an_error_that_says_what_is_lacking_and_can_be_taught() -> None:
    with pytest.raises(ConfigError, match=r"mlp\.extra\.weight.*'llama' has no 'mlp\.extra\.weight'.*register_family"):
        targets_of("llama", SIZES, "decoder.layers.3.mlp.extra.weight", {(0, 1): (4, 4)})
    register_family("llama-with-extra", {**known_families()["llama"], "mlp.extra.weight": same("mlp.extra.weight")})
    (found,) = targets_of("llama-with-extra", SIZES, "decoder.layers.3.mlp.extra.weight", {(0, 1): (4, 4)})
    assert found.name == "model.layers.3.mlp.extra.weight"
    with pytest.raises(ConfigError, match="no Megatron mapping for model_type 'gpt5'"):
        targets_of("gpt5", SIZES, "output_layer.weight", {(0, 1): (4, 4)})


def test_query_groups_that_are_split_between_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="no whole query groups on a rank"):
        targets_of("llama", SIZES, "decoder.layers.0.self_attention.linear_qkv.weight", {(n, 4): (4, 8) for n in range(4)})


@pytest.mark.parametrize(("width", "stride"), [(3, 3), (3, 7), (1, 2)])
def test_rows_are_written_where_they_belong_and_nothing_between_them(width: int, stride: int, tmp_path: Path) -> None:
    data = bytes(range(1, 4 * width + 1))
    path = tmp_path / "file"
    path.write_bytes(bytes(40))
    descriptor = os.open(path, os.O_WRONLY)
    write_rows(descriptor, memoryview(data), 5, width, stride)
    os.close(descriptor)
    wanted = bytearray(40)
    for row in range(4):
        wanted[5 + row * stride : 5 + row * stride + width] = data[row * width : (row + 1) * width]
    assert path.read_bytes() == bytes(wanted)


def test_a_process_by_itself_raises_as_many_do_and_keeps_the_cause() -> None:
    def fails() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StagingFailed, match=r"rank 0: OSError: \[Errno 28\]") as caught:
        Ranks(rank=0, count=1, node="a").together(fails)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.ranks == {0: "OSError: [Errno 28] No space left on device"}

"""A failure on one rank is raised on every rank, not when the group's 120 s are over; it leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.validation.examination import faults
from infra.validation.readers import LocalFolder
from tests.megatron.failing import failing, on_own_node
from tests.services import own_mounts
from tests.services.ranks import listing, on_ranks

pytestmark = pytest.mark.slow
AT_ONCE_S = 10.0  # in under a second, when nothing else needs the cores
CAUSES = {
    "no room on one rank": "rank 1: OSError: [Errno 27] File too large",
    "a name that nobody knows": "no Hugging Face tensor for Megatron parameter decoder.layers.3.mlp.mystery",
    "a conversion that raises": "rank 1: ArithmeticError: no way to convert decoder.layers.0.mlp.linear_fc2.weight",
    "a merge that raises": "rank 1: FloatingPointError: decoder.layers.2.self_attention.linear_proj does not merge",
    "a merge that raises before it is sent": "rank 1: FloatingPointError: decoder.layers.2.self_attention.linear_proj does not",
}


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    return on_ranks(2, failing, str(tmp_path_factory.mktemp("failing")))


@pytest.mark.parametrize("cause", CAUSES)
def test_every_rank_raises_the_same_error_at_once_because_of(cause: str, attempts: list[dict[str, dict[str, Any]]]) -> None:
    outcomes = [rank[cause]["outcome"] for rank in attempts]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == "StagingFailed"
    assert CAUSES[cause] in outcomes[0][1]
    assert max(rank[cause]["seconds"] for rank in attempts) < AT_ONCE_S
    assert [rank[cause]["left"] for rank in attempts] == [[], []]
    assert [rank[cause]["ranks"] for rank in attempts] == [2, 2]


def test_the_next_export_succeeds_whatever_happened_to_the_last(attempts: list[dict[str, dict[str, Any]]]) -> None:
    good = [name for name in attempts[0] if name not in CAUSES]
    assert len(good) == 4
    for rank in attempts:
        assert {rank[name]["outcome"][0] for name in good} == {"exported"}
        assert all("config.json" in rank[name]["left"] for name in good)


@pytest.mark.skipif(not own_mounts.possible, reason="needs root, for a mount of its own")
def test_a_full_node_fails_the_export_of_all_nodes_before_a_byte_is_copied(tmp_path: Path) -> None:
    results = on_ranks(2, on_own_node, str(tmp_path), "64k")
    assert results[0]["outcome"] == results[1]["outcome"]
    assert "rank 1: OSError: [Errno 28]" in results[0]["outcome"][1]
    assert "node 1" in results[0]["outcome"][1]
    assert max(result["seconds"] for result in results) < AT_ONCE_S
    assert [result["files"] for result in results] == [{}, {}]
    assert results[1]["ttl"] == ""


@pytest.mark.skipif(not own_mounts.possible, reason="needs root, for a mount of its own")
def test_the_parts_of_two_nodes_are_one_checkpoint_and_the_exporter_says_where_they_are(tmp_path: Path) -> None:
    results = on_ranks(2, on_own_node, str(tmp_path), "64m")
    assert [result["outcome"][0] for result in results] == ["exported", "exported"]
    parts = results[0]["parts"].parts
    assert [part.host for part in parts] == ["node 0", "node 1"]
    assert sorted(parts[1].shards) == sorted(results[1]["files"])
    assert results[1]["ttl"] == "60"  # so that it is freed there, too, if nobody comes for it
    whole = tmp_path / "whole"
    whole.mkdir()
    for result in results:
        for name, content in result["files"].items():
            assert name not in listing(whole)
            (whole / name).write_bytes(content)
    assert faults(LocalFolder(whole)) == []

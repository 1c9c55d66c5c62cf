"""What fails on one rank beside the copy, or in what it sends, is raised on all of them at once, and nobody waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.ranks import on_ranks
from tests.sharded.failing import OWN, SENT, failing

pytestmark = pytest.mark.slow
CAUSES = {
    "a last name that is taken": "rank 0: IsADirectoryError",
    "a part that is too short": f"rank 1: ShapeMismatch: {SENT} has shape [7, ",
    "a part that can't be moved": "rank 1: NotImplementedError: Cannot copy out of meta tensor",
    "a weight that is transposed": f"rank 0: ShapeMismatch: {OWN} has shape ",
    "no room for what comes": "rank 0: MemoryError: no room to receive",
}


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, failing, str(tmp_path_factory.mktemp("failing")), timeout_s=240)


@pytest.mark.parametrize("cause", CAUSES)
def test_no_rank_is_left_waiting_because_of(cause: str, attempts: list[dict[str, Any]]) -> None:
    outcomes = [rank[cause]["outcome"] for rank in attempts]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == "StagingFailed"
    assert CAUSES[cause] in outcomes[0][1]
    assert max(rank[cause]["seconds"] for rank in attempts) < 5.0
    assert [[name for name in rank[cause]["left"] if name != "config.json"] for rank in attempts] == [[], []]
    assert [rank[cause]["ranks"] for rank in attempts] == [2, 2]


def test_the_ranks_are_still_in_step_afterwards(attempts: list[dict[str, Any]]) -> None:
    for rank in attempts:
        assert [rank[name]["outcome"][0] for name in rank if name not in CAUSES] == ["exported"] * 3

"""What is staged computes what the live Megatron model computes, in every parallel layout; nothing is left to a default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.validation.examination import faults
from infra.validation.readers import LocalFolder
from tests.megatron.cases import Case, adapted, exported, loaded_logits
from tests.services.ranks import on_ranks

pytestmark = pytest.mark.slow
TOLERANCE = 2e-4  # a wrong epsilon of the norms moves logits by 1.9e-3
RANKS = 4
LAYOUTS = ((1, 1), (2, 1), (1, 2), (2, 2))
DENSE = [Case(tp=tp, pp=pp, tied=tied) for tp, pp in LAYOUTS for tied in (True, False)]
OTHERS = [
    Case(tp=2, scattered=True),
    Case(tp=2, pp=2, vpp=2),
    Case(family="Llama", tp=2, pp=2),
    Case(family="Qwen2", tp=2, pp=1, tied=True),
]
MOE = [
    Case(family="Qwen3Moe", tp=tp, pp=pp, ep=ep)
    for tp, pp, ep in ((1, 1, 1), (2, 1, 1), (1, 1, 2), (1, 2, 2), (2, 1, 2), (1, 1, 4))
]
CASES = [*DENSE, *OTHERS, *MOE]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    root = tmp_path_factory.mktemp("exports")
    return root, on_ranks(RANKS, exported, str(root), CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_staged_model_has_the_live_models_logits(case: Case, exports: tuple[Path, list[dict[str, Any]]]) -> None:
    root, results = exports
    live = [result[case.id]["logits"] for result in results if result[case.id]["logits"] is not None]
    staged, information = loaded_logits(root / case.id)
    assert len(live) == RANKS // case.pp
    for seen in live:
        assert np.abs(seen).max() > 1.0
        assert np.abs(staged - seen).max() < TOLERANCE
    assert {name: list(found) for name, found in information.items() if found} == {}
    assert faults(LocalFolder(root / case.id)) == []
    assert len(list((root / case.id).glob("*.safetensors"))) > 1
    assert all(result[case.id]["copied"] for result in results)  # replicas share the work


def test_adapters_are_merged_as_the_live_model_computes_them(tmp_path: Path) -> None:
    results = on_ranks(2, adapted, str(tmp_path))
    staged, _ = loaded_logits(tmp_path / "merged")
    plain, _ = loaded_logits(tmp_path / "plain")
    assert np.abs(staged - results[1]).max() < TOLERANCE
    assert np.abs(plain - results[1]).max() > 100 * TOLERANCE
    assert results[0] is None

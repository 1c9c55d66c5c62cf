"""An independent converter gives the same bytes, and what any converter yields is staged as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from infra.validation.examination import faults
from infra.validation.readers import LocalFolder
from tests.megatron.cases import Case
from tests.megatron.oracle import by_both
from tests.services.ranks import on_ranks

pytestmark = pytest.mark.slow
CASES = [Case(tp=2, pp=1, tied=True), Case(tp=2, pp=2, tied=False)]


def tensors(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 1
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_staged_tensors_are_those_of_an_independent_converter(case: Case, tmp_path: Path) -> None:
    on_ranks(4 if case.pp == 2 else 2, by_both, str(tmp_path), case)
    ours, theirs, in_half = (tensors(tmp_path / name) for name in ("ours", "theirs", "bfloat16"))
    assert ours.keys() == theirs.keys() == in_half.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(torch.equal(ours[name].bfloat16(), in_half[name]) for name in ours)
    assert json.loads((tmp_path / "bfloat16" / "config.json").read_text())["dtype"] == "bfloat16"
    assert [faults(LocalFolder(tmp_path / name)) for name in ("ours", "theirs", "bfloat16")] == [[], [], []]

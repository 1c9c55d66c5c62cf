"""Each way to get an export wrong that keeps names and shapes right is noticed: the tests of logits are not blind to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.errors import DtypeMismatch
from infra.validation.examination import faults
from infra.validation.layout import read_contents
from infra.validation.readers import LocalFolder
from tests.megatron.cases import loaded_logits
from tests.megatron.spoiled import CONTROLS, UNSEEN, refused, spoiled
from tests.megatron.test_logits import TOLERANCE
from tests.services.ranks import listing, on_ranks

pytestmark = pytest.mark.slow
REFUSALS = {
    "epsilon": "layernorm_epsilon is 1e-06, rms_norm_eps is 1e-05",
    "rotary base": "rotary_base is 1000000, rope_theta is 10000.0",
    "groups": "num_query_groups is 4, num_key_value_heads is 2",
    "tied": "share_embeddings_and_output_weights is False, tie_word_embeddings is True",
    "too large a vocabulary": "has 512 rows, config.json has vocab_size 1024",
    "family": "no Megatron mapping for model_type 'gpt5' (known: llama, qwen2, qwen3, qwen3_moe)",
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    root = tmp_path_factory.mktemp("spoiled")
    return root, on_ranks(2, spoiled, str(root))


@pytest.mark.parametrize("control", CONTROLS)
def test_an_export_is_told_from_the_right_one_when_spoiled_because(
    control: str, exports: tuple[Path, list[dict[str, Any]]]
) -> None:
    root, results = exports
    seen = next(result[control] for result in results if result[control] is not None)
    difference = np.abs(loaded_logits(root / control)[0] - seen).max()
    assert (difference < TOLERANCE) == (control == "nothing"), difference


@pytest.mark.parametrize("control", [UNSEEN, "tensors are bfloat16 and the config says float32", "nothing"])
def test_a_dtype_that_is_not_the_configs_is_found_by_the_validation_whether_logits_show_it_or_not(
    control: str, exports: tuple[Path, list[dict[str, Any]]]
) -> None:
    found = faults(LocalFolder(exports[0] / control))
    assert {type(fault) for fault in found} == (set() if control == "nothing" else {DtypeMismatch})


def test_a_config_that_is_not_the_models_is_refused_before_anything_is_staged(tmp_path: Path) -> None:
    results = on_ranks(2, refused, str(tmp_path))
    for name, message in REFUSALS.items():
        assert all(message in result[name] for result in results), results[0][name]
        assert listing(tmp_path / name) == []
    assert {result["vocabulary"] for result in results} == {
        "exported"
    }  # rows between the true size and the padded one say nothing
    spans = read_contents(LocalFolder(tmp_path / "vocabulary")).spans
    assert spans["model.embed_tokens.weight"].shape[0] == spans["lm_head.weight"].shape[0] == 384  # as docs/export.md says

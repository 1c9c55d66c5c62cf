"""`pinpoint evaluate` measures any Hugging Face checkpoint, a real language model for one, and leaves it as it was."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from infra.model import EvalReport, ProofLevel
from infra.records import history
from infra.store import Store
from tests.end_to_end.command import pinpoint
from tests.services.smollm2 import save_smollm2
from tests.services.stack import FLEET, RunningStack

SUITE = """
name: facts
defaults:
  apply_chat_template: true
  grader: contains
  sampling: {max_new_tokens: 24}
datasets:
  - {name: capitals, source: capitals.jsonl}
  - {name: opposites, source: opposites.jsonl}
"""
CAPITALS = [("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"), ("Spain", "Madrid")]
OPPOSITES = [("hot", "cold"), ("big", "small")]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_smollm2(tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    capitals = [f'{{"prompt": "What is the capital of {land}?", "answer": "{city}"}}\n' for land, city in CAPITALS]
    opposites = [f'{{"prompt": "What is the opposite of {word}?", "answer": "{other}"}}\n' for word, other in OPPOSITES]
    (tmp_path / "capitals.jsonl").write_text("".join(capitals))
    (tmp_path / "opposites.jsonl").write_text("".join(opposites))
    return tmp_path / "suite.yaml"


def known_to_transformers(folder: Path) -> float:
    """The share of capitals that an independent greedy pass of transformers gets right."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    right = 0
    for land, city in CAPITALS:
        asked = [{"role": "user", "content": f"What is the capital of {land}?"}]
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
        right += city.casefold() in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]).casefold()
    return right / len(CAPITALS)


def test_a_real_language_model_is_evaluated_through_the_same_flow(services: RunningStack, smollm2: Path, suite: Path) -> None:
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in smollm2.iterdir()}
    url = services.file_url("store-smollm2")
    fleet = FLEET.model_copy(update={"name": "smollm2", "num_engines": 1})
    done = pinpoint(
        "evaluate", smollm2, "--suite", suite, "--store", url, timeout_s=600, PINPOINT_FLEET=fleet.model_dump_json()
    )
    assert done.returncode == 0, done.stderr
    assert "capitals" in done.stdout
    [report] = history(Store(url), "SmolLM2-135M-Instruct")
    assert isinstance(report, EvalReport)
    assert {proof.level for proof in report.proofs} == {ProofLevel.CONTENT}
    capitals = next(result for result in report.results if result.dataset == "capitals")
    assert capitals.score is not None
    # How many it knows depends on the processor, since its logits are near ties; in another batch one may fall otherwise.
    assert capitals.score.mean == pytest.approx(known_to_transformers(smollm2), abs=1 / len(CAPITALS))
    assert capitals.score.mean > 0
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in smollm2.iterdir()} == before
    assert Store(url).list("snapshots") == {}


def test_a_point_that_was_skipped_ends_the_command_with_code_1(services: RunningStack, smollm2: Path, suite: Path) -> None:
    fleet = FLEET.model_copy(update={"name": "toolarge", "num_engines": 64, "cpus_per_engine": 4})
    done = pinpoint(
        "evaluate", smollm2, "--suite", suite, "--run", "toolarge", timeout_s=600, PINPOINT_FLEET=fleet.model_dump_json()
    )
    assert done.returncode == 1
    assert "no_capacity" in done.stderr
    assert "64 engines need 256 CPUs" in done.stderr
    [run] = services.flow_runs("toolarge")
    assert run["state"]["name"] == "Skipped"
    assert "skipped:no_capacity" in run["tags"]

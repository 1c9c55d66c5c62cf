"""Rows that could not be used and prompts that were too long are counted in the dataset's result; the others are measured."""

from __future__ import annotations

from pathlib import Path

from infra.attaching import attach
from infra.model import EvalPoint, LiveRequest, Suite
from tasks.run_dataset import run_dataset
from tests.fakes.engine import FakeEngine
from tests.fakes.prefect_server import FakePrefect
from tests.infra.examples import dataset, jsonl

KEY = "engine-key"


async def test_what_of_the_data_was_not_measured_is_in_the_result(tmp_path: Path, prefect: FakePrefect) -> None:
    lines = [
        '{"prompt": "1+1=", "answer": 2}',
        "{bad",
        '{"prompt": "?"}',
        '{"prompt": "a prompt that is too long", "answer": 2}',
    ]
    spec = dataset(source=jsonl(tmp_path / "d.jsonl", *lines), on_bad_row="skip", samples_per_prompt=2)
    with FakeEngine(KEY) as engine:
        engine.version, engine.context = "17", 10
        request = LiveRequest(
            point=EvalPoint(run="run", step=40),
            engines=(engine.base_url,),
            suite=Suite(name="suite", datasets=(spec,)),
            store_url=(tmp_path / "store").as_uri(),
        )
        result = await run_dataset.fn(await attach(request, KEY), spec, "suite", request.store_url)
    assert (result.n_prompts, result.n_samples, result.bad_rows, result.too_long) == (2, 4, 2, 1)
    [shown] = [body for method, path, body in prefect.requests if (method, path) == ("POST", "/api/artifacts/")]
    assert shown["key"].startswith("progress-")

"""A dataset that can't be measured has no score and says why; the others of its suite are measured all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.attaching import attach
from infra.datasets import digest_of, suite_digest
from infra.errors import EvalSkip
from infra.model import DatasetResult, DatasetSpec, EvalPoint, LiveRequest, Suite
from tasks import run_dataset, run_datasets
from tests.fakes.engine import FakeEngine
from tests.infra.examples import dataset, jsonl
from tests.services.ports import free_port

KEY = "engine-key"
pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    monkeypatch.setattr(run_datasets, "run_dataset", run_dataset.run_dataset.fn)
    with FakeEngine(KEY) as engine:
        engine.version = "17"
        yield engine


def request(engine: FakeEngine, folder: Path, *datasets: DatasetSpec) -> LiveRequest:
    return LiveRequest(
        point=EvalPoint(run="run", step=40),
        engines=(engine.base_url,),
        suite=Suite(name="suite", datasets=datasets),
        store_url=(folder / "store").as_uri(),
    )


async def measured(asked: LiveRequest) -> list[DatasetResult]:
    return await run_datasets.run_datasets(await attach(asked, KEY), asked.suite, asked.store_url)


def good(folder: Path, name: str = "good") -> DatasetSpec:
    return dataset(name, source=jsonl(folder / f"{name}.jsonl", '{"prompt": "1+1=", "answer": 2}'))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"source": "torn.jsonl"}, "torn.jsonl, line 2: "),
        ({"source": "nowhere.jsonl"}, "nowhere.jsonl: file does not exist"),
        ({"grader": {"name": "custom", "function": "nowhere:grade"}}, "there is no module nowhere"),
    ],
)
async def test_a_dataset_that_is_at_fault_costs_only_its_own_score(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "torn.jsonl", '{"prompt": "1+1=", "answer": 2}', "{bad")
    bad = DatasetSpec.model_validate({**good(tmp_path, "bad").model_dump(), **fault})
    first, second = await measured(request(engine, tmp_path, good(tmp_path), bad))
    assert (first.dataset, first.n_samples, first.no_score) == ("good", 1, "")
    assert first.score is not None
    assert (second.dataset, second.score, second.n_samples, second.samples_location) == ("bad", None, 0, "")
    assert said in second.no_score
    assert (second.coverage, second.worst, second.best) == (0.0, 0.0, 1.0)


async def test_data_that_is_away_costs_its_dataset_alone(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    away = DatasetSpec(name="away", source="s3://bucket/rows.jsonl")
    first, second = await measured(request(engine, tmp_path, good(tmp_path), away))
    assert (first.no_score, second.score) == ("", None)
    assert "away: " in second.no_score


async def test_if_all_are_the_point_is_skipped_for_its_suite(engine: FakeEngine, tmp_path: Path) -> None:
    bad = dataset("bad", source=str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(EvalSkip, match="nowhere.jsonl: file does not exist") as caught:
        await measured(request(engine, tmp_path, bad))
    assert caught.value.reason == "suite_invalid"


async def test_a_results_digest_is_of_what_was_asked_and_not_of_what_the_data_has_become(
    engine: FakeEngine, tmp_path: Path
) -> None:
    asked = request(engine, tmp_path, good(tmp_path), good(tmp_path, "other"))
    before = suite_digest(asked.suite)
    results = await measured(asked)
    jsonl(tmp_path / "good.jsonl", '{"prompt": "2+2=", "answer": 4}')
    assert digest_of(result.digest for result in results) == before != suite_digest(asked.suite)

"""A live evaluation works with the trainer's updates in both of SGLang's modes, which it neither knows nor changes.

The weights are updated right before and right after, and requests of the producer are in flight across both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.model import EvalReport
from infra.records import samples_at
from tests.end_to_end.live_training import FillingProducer, LiveRun, save_secret, update
from tests.end_to_end.points import run_name, wait_until
from tests.engines.conftest import Checkpoints
from tests.engines.launching import RunningEngine
from tests.services.stack import RunningStack
from tests.sglang.launching import KEY, sglang_engine
from trainer_integration.pause_gate import PauseGate

pytestmark = pytest.mark.sglang
SECRET = "sglang-key"
LONG_TOKENS = 4000


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def engine(services: RunningStack, checkpoints: Checkpoints) -> Iterator[RunningEngine]:
    save_secret(services, SECRET, KEY)
    with sglang_engine(checkpoints.make("first", 1)) as started:
        yield started


def long_submission(gate: PauseGate, engine: RunningEngine, pool: ThreadPoolExecutor) -> Future[dict[str, Any]]:
    """Returns when the engine has begun with it."""

    def submit() -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": LONG_TOKENS, "ignore_eos": True}
        with gate.submission():
            headers = {"Authorization": f"Bearer {engine.api_key}"}
            body = {"text": "77+2=", "sampling_params": sampling}
            answer: dict[str, Any] = httpx.post(f"{engine.base_url}/generate", json=body, headers=headers, timeout=400).json()
            return answer

    future = pool.submit(submit)
    wait_until(lambda: gate.status.in_flight > 0 and engine.running() > 0)
    return future


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_it_works_in_both_pause_modes_with_an_update_right_before_and_right_after(
    services: RunningStack, engine: RunningEngine, checkpoints: Checkpoints, request: pytest.FixtureRequest, mode: str
) -> None:
    live = LiveRun(services, run_name(request), [engine], api_key_from=f"secret:{SECRET}", settle_s=1.0)
    first, second = checkpoints.make("first", 1), checkpoints.make("second", 2)
    update(engine, first, "39")
    prompts = [json.loads(line)["prompt"] for line in Path(str(live.dataset.source)).read_text().splitlines()]
    for prompt in prompts:  # what the engine remembers of them is of the old weights
        engine.generate(prompt)
    gate = PauseGate()
    producer = FillingProducer(gate, engine)
    with ThreadPoolExecutor(1) as pool, producer.running(2), live.evaluator(gate) as evaluator:
        long = long_submission(gate, engine, pool)
        wait_until(lambda: running(engine) > 2)  # the long one beside the producer's two
        count = len(producer.answers)
        wait_until(lambda: len(producer.answers) > count + 4)
        update(engine, second, "40", mode)
        result = evaluator.evaluate_live(40)
        update(engine, first, "41", mode)
        assert not long.done(), "it was in flight from before the first update until after the second"
        count = len(producer.answers)
        wait_until(lambda: len(producer.answers) > count + 4)
        answer = long.result(timeout=400)
    assert result is not None
    assert isinstance(result.record, EvalReport), result.record
    assert (result.record.weight_version, result.record.results[0].mixed_version_ratio) == ("40", 0.0)
    assert result.pauses[0].unfinished >= 1
    assert answer["meta_info"]["finish_reason"]["type"] == "length"
    assert [span["version"] for span in answer["meta_info"]["weight_versions"]] == ["39", "40", "41"]
    assert (producer.failures, producer.finishes()) == ([], {"length"}), "nothing of the producer was aborted"
    assert {"39", "41"} <= producer.versions()
    assert responses(live, result.record) == fresh_responses(engine, second, prompts)


def running(engine: RunningEngine) -> int:
    """Requests that the engine generates for, and does not keep waiting."""
    return sum(int(rank["num_running_reqs"]) for rank in engine.get("/v1/loads?include=core").json()["loads"])


def responses(live: LiveRun, report: EvalReport) -> list[str]:
    return [sample.response for sample in samples_at(live.store, report.results[0].samples_location)]


def fresh_responses(engine: RunningEngine, folder: Path, prompts: list[str]) -> list[str]:
    """Of an engine that remembers nothing of any other weights."""
    update(engine, folder, "fresh")
    return [engine.generate(prompt, sampling_params={"ignore_eos": False})["text"] for prompt in prompts]


def test_what_the_engine_remembers_of_old_weights_is_used_by_requests_that_do_not_say_which_evaluation_they_are_of(
    engine: RunningEngine, checkpoints: Checkpoints
) -> None:
    """The reason for the evaluation's own cache key."""
    first, second, prompt = checkpoints.make("first", 1), checkpoints.make("second", 2), "12+34=56+78=90+12="
    update(engine, second, "fresh")
    right = engine.generate(prompt, tokens=24, return_logprob=True)
    update(engine, first, "39")
    engine.generate(prompt, tokens=24)
    update(engine, second, "40", "in_place")
    stale = engine.generate(prompt, tokens=24, return_logprob=True)
    kept_apart = engine.generate(prompt, tokens=24, return_logprob=True, extra_key="of this evaluation")
    assert (stale["meta_info"]["weight_version"], stale["meta_info"]["cached_tokens"] > 0) == ("40", True)
    assert kept_apart["meta_info"]["cached_tokens"] == 0
    assert log_probs(kept_apart) == pytest.approx(log_probs(right), abs=1e-4)
    assert log_probs(stale) != pytest.approx(log_probs(right), abs=1e-4)


def log_probs(answer: dict[str, Any]) -> list[float]:
    return [float(entry[0]) for entry in answer["meta_info"]["output_token_logprobs"]]

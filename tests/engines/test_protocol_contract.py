"""What Pinpoint's client relies on in every engine, real SGLang included: see the wire facts of SGLang 0.5.23."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.engines.launching import RunningEngine, wait_until

PROMPT = "12+34="
LONG = 3000  # more than a test waits for
MIDDLE = 1600  # time enough to act on it while it runs
SHORT_PAUSE_S = 0.3
SCORE_TOLERANCE = 5e-3  # SGLang's kernels for CPUs were up to 0.0014 off; another checkpoint is off by 0.1 and more


def test_an_idle_engine_is_healthy_and_ready(engine: RunningEngine) -> None:
    assert [engine.get(path).status_code for path in ("/health", "/health_generate", "/ready")] == [200, 200, 200]


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info_names_the_path_and_the_version(engine: RunningEngine, first: Path, path: str) -> None:
    info = engine.get(path).json()
    assert (info["model_path"], info["weight_version"]) == (str(first), "first")


def test_a_greedy_answer_says_what_produced_it_and_repeats(engine: RunningEngine) -> None:
    answer = engine.generate(PROMPT, rid="mine")
    meta = answer["meta_info"]
    assert meta["id"] == "mine"
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (7, 8)
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["weight_version"] == "first"
    assert [(span["version"], span["start"], span["end"]) for span in meta["weight_versions"]] == [("first", 0, 8)]
    assert engine.generate(PROMPT)["output_ids"] == answer["output_ids"]


def test_a_list_of_prompts_gives_a_list_of_answers_in_order(engine: RunningEngine) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    answers = engine.post("/generate", {"text": ["1+1=", "22+22="], "sampling_params": sampling}).json()
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [5, 7]
    assert [answer["output_ids"] for answer in answers] == [
        engine.generate(text, tokens=4)["output_ids"] for text in ("1+1=", "22+22=")
    ]


def test_a_stop_token_ends_the_answer_and_is_named(engine: RunningEngine) -> None:
    first_token = engine.generate(PROMPT, tokens=1)["output_ids"][0]
    sampling = {"stop_token_ids": [first_token], "ignore_eos": False}
    reason = engine.generate(PROMPT, sampling_params=sampling)["meta_info"]["finish_reason"]
    assert reason == {"type": "stop", "matched": first_token}


def test_log_probabilities_are_triples_for_each_output_token(engine: RunningEngine) -> None:
    answer = engine.generate(PROMPT, tokens=3, return_logprob=True, logprob_start_len=0)
    meta = answer["meta_info"]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(logprob < 0 for logprob, _, _ in meta["output_token_logprobs"])
    assert meta["input_token_logprobs"][0][0] is None
    assert len(meta["input_token_logprobs"]) == 7


@pytest.mark.parametrize("start", [0, 3])
def test_a_given_text_is_scored_as_the_model_itself_does(engine: RunningEngine, first: Path, start: int) -> None:
    ids, likelihoods = own_likelihoods(first, PROMPT)
    meta = engine.generate(ids, tokens=0, return_logprob=True, logprob_start_len=start, top_logprobs_num=1)["meta_info"]
    entries, top = meta["input_token_logprobs"], meta["input_top_logprobs"]
    assert [token for _, token, _ in entries] == ids[start:]
    assert (entries[0][0], top[0]) == (None, None)
    for position, (logprob, token, _) in enumerate(entries[1:], start):
        assert logprob == pytest.approx(likelihoods[position][token], abs=SCORE_TOLERANCE)
    for position, ((logprob, token, _),) in enumerate(top[1:], start):
        assert logprob == pytest.approx(max(likelihoods[position]), abs=SCORE_TOLERANCE)
        assert likelihoods[position][token] == pytest.approx(logprob, abs=SCORE_TOLERANCE)
    assert {span["version"] for span in meta["weight_versions"]} <= {"first"}
    assert meta["weight_version"] == "first"


def test_a_text_is_scored_under_the_weights_of_the_moment(engine: RunningEngine, first: Path, second: Path) -> None:
    asked = {"tokens": 0, "return_logprob": True, "logprob_start_len": 0}
    ids, likelihoods = own_likelihoods(second, PROMPT)
    engine.generate(ids, **asked)  # what an engine keeps of prompts is of the first
    engine.update(second, "second").raise_for_status()
    meta = engine.generate(ids, **asked)["meta_info"]
    scored = [logprob for logprob, _, _ in meta["input_token_logprobs"][1:]]
    expected = [likelihoods[position][token] for position, token in enumerate(ids[1:])]
    assert scored == pytest.approx(expected, abs=SCORE_TOLERANCE)
    assert expected != pytest.approx([own_likelihoods(first, PROMPT)[1][i][t] for i, t in enumerate(ids[1:])], abs=0.1)
    assert meta["weight_version"] == "second"


def own_likelihoods(folder: Path, text: str) -> tuple[list[int], list[list[float]]]:
    """The tokens of `text`, and the log-probabilities of every token after each of them, by transformers alone."""
    model, ids = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder).encode(text)
    with torch.no_grad():
        return ids, torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1).tolist()


def test_an_update_changes_weights_version_and_path_together(engine: RunningEngine, second: Path) -> None:
    before = engine.checksums()
    assert engine.update(second, "second").json()["success"] is True
    info = engine.get("/model_info").json()
    assert (info["model_path"], info["weight_version"]) == (str(second), "second")
    assert engine.checksums() != before
    assert engine.generate(PROMPT)["meta_info"]["weight_version"] == "second"


def test_without_a_version_the_weights_change_and_the_label_stays(engine: RunningEngine, second: Path) -> None:
    before = engine.checksums()
    engine.update(second).raise_for_status()
    assert engine.version() == "first"
    assert engine.checksums() != before


def test_the_same_checkpoint_gives_the_same_checksums_again(engine: RunningEngine, first: Path, second: Path) -> None:
    before = engine.post("/weights_checker", {"action": "checksum"}).json()
    engine.update(second, "second").raise_for_status()
    engine.update(first, "again").raise_for_status()
    after = engine.post("/weights_checker", {"action": "checksum"}).json()
    assert after["per_engine_checksum"] == before["per_engine_checksum"]
    assert after["ranks"] == before["ranks"]


def test_a_missing_folder_is_refused_and_nothing_changes(engine: RunningEngine, tmp_path: Path) -> None:
    before = engine.checksums()
    refused = engine.update(tmp_path / "nowhere", "nowhere")
    assert (refused.status_code, refused.json()["success"]) == (400, False)
    assert (engine.version(), engine.checksums()) == ("first", before)


def test_an_unpaused_update_waits_for_the_requests_that_run(engine: RunningEngine, second: Path) -> None:
    running = engine.in_background(PROMPT, tokens=300)
    engine.update(second, "second").raise_for_status()
    meta = running.result(timeout=60)["meta_info"]
    assert [span["version"] for span in meta["weight_versions"]] == ["first"]


def test_an_update_that_aborts_all_requests_does_not_wait(engine: RunningEngine, second: Path) -> None:
    running = engine.in_background(PROMPT, tokens=LONG)
    # Until they have ended, SGLang answers 400: it has loaded the weights and can't flush its cache.
    wait_until(lambda: engine.update(second, "second", abort_all_requests=True).is_success)
    assert running.result(timeout=60)["meta_info"]["finish_reason"]["type"] == "abort"
    assert engine.version() == "second"


def test_a_request_paused_in_place_reports_both_versions(engine: RunningEngine, second: Path) -> None:
    running = engine.in_background(PROMPT, tokens=MIDDLE)
    engine.post("/pause_generation", {"mode": "in_place"}).raise_for_status()
    engine.update(second, "second", flush_cache=False).raise_for_status()
    engine.post("/continue_generation", {}).raise_for_status()
    meta = running.result(timeout=60)["meta_info"]
    spans = meta["weight_versions"]
    assert [span["version"] for span in spans] == ["first", "second"]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], MIDDLE)


def test_a_retracted_request_keeps_its_tokens_and_says_it_was_retracted(engine: RunningEngine, second: Path) -> None:
    running = engine.in_background(PROMPT, tokens=MIDDLE)
    engine.post("/pause_generation", {"mode": "retract"}).raise_for_status()
    engine.update(second, "second").raise_for_status()
    engine.post("/continue_generation", {}).raise_for_status()
    meta = running.result(timeout=60)["meta_info"]
    assert meta["num_retractions"] >= 1
    assert meta["completion_tokens"] == MIDDLE
    assert [span["version"] for span in meta["weight_versions"]] == ["first", "second"]


def test_a_pause_that_aborts_answers_every_request_at_once(engine: RunningEngine) -> None:
    running = engine.in_background(PROMPT, tokens=LONG)
    answer = engine.post("/pause_generation", {"mode": "abort"}).json()
    assert {"message", "status"} <= answer.keys()
    meta = running.result(timeout=60)["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["completion_tokens"] < LONG


def test_a_request_sent_while_paused_waits_for_the_continue(engine: RunningEngine) -> None:
    engine.post("/pause_generation", {"mode": "abort"}).raise_for_status()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.generate, PROMPT)
        time.sleep(SHORT_PAUSE_S)
        assert not waiting.done()
        engine.post("/continue_generation", {}).raise_for_status()
        assert waiting.result(timeout=60)["meta_info"]["completion_tokens"] == 8


def test_a_paused_engine_is_not_ready_nor_healthy_for_long_and_answers_all_the_same(engine: RunningEngine) -> None:
    engine.post("/pause_generation", {"mode": "abort"}).raise_for_status()
    assert [engine.get(path).status_code for path in ("/ready", "/health", "/server_info")] == [503, 503, 200]
    assert engine.version() == "first"
    engine.post("/continue_generation", {}).raise_for_status()
    assert engine.get("/ready").status_code == 503  # the health check has failed
    wait_until(lambda: engine.get("/health").status_code == 200, timeout_s=30, every_s=0.2)
    assert engine.get("/ready").status_code == 200


@pytest.mark.parametrize("path", ["/pause_generation", "/continue_generation"])
def test_pause_and_continue_want_a_body(engine: RunningEngine, path: str) -> None:
    assert engine.post(path).status_code in (400, 422)


def test_abort_request_ends_the_one_it_names(engine: RunningEngine) -> None:
    mine = engine.in_background(PROMPT, tokens=LONG, rid="mine")
    other = engine.in_background(PROMPT, tokens=300, rid="other")
    assert engine.post("/abort_request", {"rid": "mine"}).status_code == 200
    assert mine.result(timeout=60)["meta_info"]["finish_reason"]["type"] == "abort"
    assert other.result(timeout=60)["meta_info"]["finish_reason"]["type"] == "length"


def test_flush_cache_is_refused_while_a_request_runs(engine: RunningEngine) -> None:
    running = engine.in_background(PROMPT, tokens=LONG)
    assert engine.post("/flush_cache").status_code == 400
    engine.post("/abort_request", {"abort_all": True})
    running.result(timeout=60)
    wait_until(lambda: engine.running() == 0)
    assert engine.post("/flush_cache").status_code == 200
    assert engine.get("/flush_cache").status_code == 200


def test_a_prompt_longer_than_the_context_is_refused_not_cut(engine: RunningEngine) -> None:
    assert engine.post("/generate", {"input_ids": [5] * 9000, "sampling_params": {}}).status_code == 400

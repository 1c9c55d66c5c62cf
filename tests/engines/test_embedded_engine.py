"""The embedded engine batches for real, answers what transformers would, and refuses what SGLang would die of."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

import httpx
import pytest
import torch
import xxhash
from safetensors.torch import load_file, save_file

from infra.engines.embedded.live_model import LiveModel
from infra.model import EngineRef, EvalPoint, FleetLease, ProofLevel, SnapshotRef
from infra.pinning import pin
from infra.snapshot import describe, validate
from tests.engines.conftest import CONTEXT_LENGTH, Checkpoints, seeded_model
from tests.engines.launching import RunningEngine, wait_until
from tests.fakes.engine import digests
from trainer_integration.tiny_trainer.model import build_tokenizer

ENGINES = ["embedded"]
WEIGHTS = "model.safetensors"
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
GENERATION = "generation_config.json"
Spoil = Callable[[Path], object]


@cache
def reference_model(seed: int) -> Any:
    torch.set_num_threads(1)
    return seeded_model(seed)


def reference(seed: int, prompt: str, tokens: int) -> list[int]:
    """What transformers gives for the prompt alone."""
    ids = build_tokenizer().encode(prompt)
    output = reference_model(seed).generate(torch.tensor([ids]), do_sample=False, max_new_tokens=tokens, eos_token_id=None)
    return [int(token) for token in output[0, len(ids) :]]


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return spoil


def truncate(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def only_pickle(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def index_without_shard(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {NORM: "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def stale_single_file(folder: Path) -> None:
    """The index and its shard are whole; the single file is of another save."""
    shard = "model-00001-of-00001.safetensors"
    copyfile(folder / WEIGHTS, folder / shard)
    weight_map = dict.fromkeys(load_file(folder / WEIGHTS), shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    rewrite(lambda tensors: tensors[NORM].fill_(2.0))(folder)


REFUSALS: dict[str, tuple[Spoil, str]] = {
    "a missing tensor": (rewrite(lambda tensors: tensors.pop(NORM)), NORM),
    "an extra tensor": (rewrite(lambda tensors: tensors.update(spare=torch.zeros(1))), "spare"),
    "a wrong shape": (rewrite(lambda tensors: tensors.update({NORM: torch.ones(7)})), NORM),
    "a wrong dtype": (rewrite(lambda tensors: tensors.update({NORM: tensors[NORM].half()})), NORM),
    "a tied head that differs": (
        rewrite(lambda tensors: tensors.update({HEAD: torch.zeros(32, 32)})),
        HEAD,
    ),
    "a tied head of another dtype": (
        rewrite(lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].half()})),
        HEAD,
    ),
    "a single file beside the index of another save": (stale_single_file, WEIGHTS),
    "a truncated file": (truncate, WEIGHTS),
    "a file that is not safetensors": (lambda folder: (folder / WEIGHTS).write_text("no"), WEIGHTS),
    "only a pickle": (only_pickle, WEIGHTS),
    "a shard that is not there": (index_without_shard, "model-00001-of-00001.safetensors"),
    "a generation config that is none": (
        lambda folder: (folder / GENERATION).write_text('{"eos_token_id": "</s>"}'),
        GENERATION,
    ),
    "a broken tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_bad_checkpoint_is_refused_by_name_and_the_old_one_serves_on(
    engine: RunningEngine, second: Path, tmp_path: Path, what: str
) -> None:
    spoil, named = REFUSALS[what]
    folder = copytree(second, tmp_path / "bad")
    spoil(folder)
    before = engine.checksums(), engine.generate("1+2=")["output_ids"]
    refused = engine.update(folder, "bad")
    assert refused.status_code == 400
    assert refused.json()["success"] is False
    assert named in refused.json()["message"]
    assert engine.version() == "first"
    assert (engine.checksums(), engine.generate("1+2=")["output_ids"]) == before


def test_a_path_that_the_system_refuses_is_refused_by_name(engine: RunningEngine, tmp_path: Path) -> None:
    refused = engine.update(tmp_path / ("x" * 300))
    assert (refused.status_code, "can't be read: File name too long" in refused.json()["message"]) == (400, True)


def test_checksums_are_those_of_the_bytes_in_the_file(engine: RunningEngine, first: Path) -> None:
    expected = {
        name: xxhash.xxh3_128_hexdigest(tensor.numpy().tobytes()) for name, tensor in load_file(first / WEIGHTS).items()
    }
    answer = engine.post("/weights_checker", {"action": "checksum"}).json()
    assert answer["algorithm"] == "xxh3_128"
    assert answer["ranks"] == [{"checksums": expected}]
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(expected.items()))
    assert answer["per_engine_checksum"] == xxhash.xxh3_128_hexdigest(lines.encode())


def test_a_tied_head_has_a_checksum_while_the_checkpoint_held_it(engine: RunningEngine, second: Path, tmp_path: Path) -> None:
    folder = copytree(second, tmp_path / "explicit")
    rewrite(lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))(folder)
    engine.update(folder, "explicit").raise_for_status()
    assert engine.checksums() == digests(folder)
    engine.update(second, "second").raise_for_status()
    assert engine.checksums() == digests(second)
    assert HEAD in digests(folder).keys() - digests(second).keys()


@pytest.mark.parametrize("head", [True, False], ids=["with its tied head", "without"])
async def test_a_checkpoint_is_pinned_by_content(engine: RunningEngine, second: Path, tmp_path: Path, head: bool) -> None:
    folder = copytree(second, tmp_path / "pinned")
    if head:
        rewrite(lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))(folder)
    point = EvalPoint(run="run", step=10)
    manifest = describe(folder, validate(folder), point)
    snapshot = SnapshotRef(point=point, location=folder.as_uri(), manifest=manifest, owned=False)
    ref = EngineRef(name="engine", base_url=engine.base_url, pid=1, checkpoint_path=str(folder))
    lease = FleetLease(fleet="eval", epoch=1, holder="test", ttl_s=60.0, engines=(ref,), api_key="")
    pinned = await pin(lease, snapshot)
    assert [proof.level for proof in pinned.proofs] == [ProofLevel.CONTENT]
    assert (HEAD in manifest.tensors) == head


def test_a_token_that_only_the_generation_config_says_ends_a_text_ends_it_until_an_update_says_otherwise(
    engine: RunningEngine, second: Path, tmp_path: Path
) -> None:
    greedy = {"ignore_eos": False}
    tokens = reference(2, "1+2=", 8)
    folder = copytree(second, tmp_path / "chat")
    (folder / GENERATION).write_text(json.dumps({"eos_token_id": [2, tokens[3]]}))
    engine.update(folder, "chat").raise_for_status()
    answer = engine.generate("1+2=", sampling_params=greedy)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": tokens[3]}
    assert answer["output_ids"] == tokens[: tokens.index(tokens[3]) + 1]
    (folder / GENERATION).unlink()
    engine.update(folder, "no generation config").raise_for_status()
    assert engine.generate("1+2=", sampling_params=greedy)["output_ids"] == tokens


def test_the_stop_tokens_of_the_start_are_those_of_config_generation_config_and_tokenizer(second: Path, tmp_path: Path) -> None:
    folder = copytree(second, tmp_path / "chat")
    (folder / GENERATION).write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert LiveModel.load(str(folder), "start").served.stop_ids == {2, 7}
    (folder / GENERATION).unlink()
    assert LiveModel.load(str(folder), "start").served.stop_ids == {2}


def test_an_update_without_a_tokenizer_keeps_the_one_before(engine: RunningEngine, second: Path, tmp_path: Path) -> None:
    folder = copytree(second, tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    engine.update(folder, "bare").raise_for_status()
    assert engine.generate("1+2=")["output_ids"] == reference(2, "1+2=", 8)


def test_a_sharded_checkpoint_loads_as_the_single_file_does(
    engine: RunningEngine, checkpoints: Checkpoints, second: Path
) -> None:
    sharded = checkpoints.make("second_sharded", 2, shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    engine.update(sharded, "sharded").raise_for_status()
    from_shards = engine.checksums()
    engine.update(second, "second").raise_for_status()
    assert engine.checksums() == from_shards


def test_an_update_outlives_the_deletion_of_its_folder(engine: RunningEngine, second: Path, tmp_path: Path) -> None:
    folder = copytree(second, tmp_path / "gone")
    engine.update(folder, "gone").raise_for_status()
    before = engine.checksums()
    (folder / WEIGHTS).write_bytes(b"")
    assert engine.checksums() == before
    assert engine.generate("1+2=")["output_ids"] == reference(2, "1+2=", 8)


def test_a_greedy_answer_is_the_one_transformers_gives(engine: RunningEngine) -> None:
    assert engine.generate("12+34=", tokens=40)["output_ids"] == reference(1, "12+34=", 40)


def test_concurrent_requests_of_all_lengths_run_together_and_answer_as_alone(engine: RunningEngine) -> None:
    prompts = [f"{'7' * (1 + 3 * i)}+{i}=" for i in range(12)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        jobs = [pool.submit(engine.generate, prompt, tokens=20 + 3 * i) for i, prompt in enumerate(prompts)]
        together = [job.result()["output_ids"] for job in jobs]
    assert engine.get("/server_info").json()["internal_states"][0]["peak_running_reqs"] > 1
    assert together == [reference(1, prompt, 20 + 3 * i) for i, prompt in enumerate(prompts)]


def test_a_short_request_does_not_wait_for_a_long_one(engine: RunningEngine) -> None:
    expected = reference(1, "22+2=", 5)
    long = engine.in_background("1+1=", tokens=2000)
    assert engine.generate("22+2=", tokens=5)["output_ids"] == expected
    assert not long.done()
    assert engine.running() == 1


def test_updates_under_load_never_mix_two_checkpoints(engine: RunningEngine, first: Path, second: Path) -> None:
    expected = {"first": reference(1, "9*9=", 30), "second": reference(2, "9*9=", 30)}
    stop, answers = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            answers.append(engine.generate("9*9=", tokens=30))

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ask) for _ in range(4)]
        try:
            for folder in (second, first) * 4:
                engine.update(folder, folder.name).raise_for_status()
        finally:
            stop.set()
        for job in jobs:
            job.result()
    seen = [[span["version"] for span in answer["meta_info"]["weight_versions"]] for answer in answers]
    assert {"first", "second"} == {version for versions in seen for version in versions}
    assert [answer["output_ids"] for answer in answers] == [expected[version] for (version,) in seen]


def test_a_flush_is_refused_while_requests_hold_the_cache_in_place(engine: RunningEngine, second: Path) -> None:
    running = engine.in_background("1+1=", tokens=400)
    engine.post("/pause_generation", {"mode": "in_place"}).raise_for_status()
    refused = engine.update(second, "second")
    assert (refused.status_code, engine.version()) == (400, "first")
    assert "flush_cache=false" in refused.json()["message"]
    engine.post("/continue_generation", {}).raise_for_status()
    assert running.result()["output_ids"] == reference(1, "1+1=", 400)


def test_a_retracted_request_without_an_update_answers_as_if_undisturbed(engine: RunningEngine) -> None:
    running = engine.in_background("1+1=", tokens=400)
    engine.post("/pause_generation", {"mode": "retract"}).raise_for_status()
    assert engine.running() == 0
    engine.post("/continue_generation", {}).raise_for_status()
    assert running.result()["output_ids"] == reference(1, "1+1=", 400)


def test_a_client_that_goes_away_leaves_the_batch(engine: RunningEngine) -> None:
    body = {"text": "1+1=", "sampling_params": {"max_new_tokens": 6000, "ignore_eos": True}}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(engine.base_url + "/generate", json=body, timeout=httpx.Timeout(30, read=0.5))
    wait_until(lambda: engine.running() == 0, timeout_s=4)


def test_a_stop_text_is_cut_from_the_answer_and_named(engine: RunningEngine) -> None:
    whole = engine.generate("12+34=", tokens=12)["text"]
    stop = whole[3:5]
    answer = engine.generate("12+34=", tokens=12, sampling_params={"stop": [stop]})
    assert answer["text"] == whole[: whole.index(stop)]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_a_seed_repeats_and_another_does_not(engine: RunningEngine) -> None:
    def sample(seed: int) -> Any:
        sampling = {"temperature": 1.0, "top_p": 0.95, "min_p": 0.01, "sampling_seed": seed}
        return engine.generate("12+34=", tokens=40, sampling_params=sampling)["output_ids"]

    assert sample(1) == sample(1) != sample(2)


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_the_narrowest_sampling_is_the_argmax(engine: RunningEngine, narrow: dict[str, float]) -> None:
    sampling = {"temperature": 1.0, **narrow}
    assert engine.generate("12+34=", sampling_params=sampling)["output_ids"] == reference(1, "12+34=", 8)


def test_sampled_tokens_follow_the_distribution_asked_for(engine: RunningEngine) -> None:
    sampling = {"temperature": 0.5, "top_k": 4, "max_new_tokens": 1}
    body = {"text": ["12+34="] * 1500, "sampling_params": sampling, "return_logprob": True}
    answers = engine.post("/generate", body).json()
    drawn = [answer["meta_info"]["output_token_logprobs"][0] for answer in answers]
    logprobs = {token: logprob for logprob, token, _ in drawn}
    total = sum(math.exp(logprob) for logprob in logprobs.values())
    assert len(logprobs) == 4
    for token, logprob in logprobs.items():
        share = sum(other == token for _, other, _ in drawn) / len(drawn)
        assert share == pytest.approx(math.exp(logprob) / total, abs=0.06)


@pytest.mark.parametrize("start", [0, 1])
def test_texts_of_different_lengths_scored_together_get_what_transformers_gives_each_alone(
    engine: RunningEngine, start: int
) -> None:
    texts = ["1+1=", "22+22=44", "7*(3-12)=-63", "1"]
    body = {"sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": start}
    answers = engine.post("/generate", {"text": texts, "top_logprobs_num": 3, **body}).json()
    for text, answer in zip(texts, answers, strict=True):
        ids = build_tokenizer().encode(text)
        with torch.no_grad():
            own = torch.log_softmax(reference_model(1)(torch.tensor([ids])).logits[0].float(), dim=-1)[start:-1]
        scored, meta = ids[start + 1 :], answer["meta_info"]
        expected = [float(row[token]) for row, token in zip(own, scored, strict=True)]
        assert [token for _, token, _ in meta["input_token_logprobs"][1:]] == scored
        assert [value for value, _, _ in meta["input_token_logprobs"][1:]] == pytest.approx(expected, abs=1e-5)
        likeliest = [[token for _, token, _ in top] for top in meta["input_top_logprobs"][1:]]
        assert likeliest == [row.topk(3).indices.tolist() for row in own]
        assert (answer["output_ids"], meta["completion_tokens"], meta["output_top_logprobs"]) == ([], 0, [])


def test_the_likeliest_tokens_come_with_each_that_is_generated(engine: RunningEngine) -> None:
    answer = engine.generate("1+1=", tokens=5, return_logprob=True, top_logprobs_num=2)
    for chosen, (first_choice, second_choice) in zip(
        answer["meta_info"]["output_token_logprobs"], answer["meta_info"]["output_top_logprobs"], strict=True
    ):
        assert first_choice == chosen
        assert second_choice[0] < first_choice[0]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"text": "1", "sampling_params": {"temprature": 0}}, "temprature"),
        ({"text": "1", "sampling_params": {"top_p": 0}}, "top_p"),
        ({"text": "1", "stream": True}, "stream"),
        ({"text": "1", "input_ids": [1]}, "either"),
        ({"input_ids": [10**6]}, "vocabulary"),
        ({"input_ids": []}, "no tokens"),
        ({"input_ids": [5] * CONTEXT_LENGTH}, "context length"),
        ({"input_ids": [5] * 100, "sampling_params": {"max_new_tokens": CONTEXT_LENGTH}}, "context length"),
        ({"text": "1", "return_logprob": True, "logprob_start_len": 9}, "logprob_start_len"),
        ({"text": "1", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused_by_name(engine: RunningEngine, body: dict[str, Any], named: str) -> None:
    refused = engine.post("/generate", body)
    assert refused.status_code == 400
    assert named in refused.json()["error"]["message"]


@pytest.mark.parametrize("field", ["text", "stop"])
def test_half_a_surrogate_pair_is_refused_and_the_engine_serves_on(engine: RunningEngine, field: str) -> None:
    body = {"text": "1", "sampling_params": {"max_new_tokens": 2}}
    (body if field == "text" else body["sampling_params"])[field] = "\ud800"  # type: ignore[index]
    refused = engine.post_raw("/generate", json.dumps(body).encode())
    assert (refused.status_code, "surrogate" in refused.json()["error"]["message"]) == (400, True)
    assert engine.get("/health").status_code == 200


def test_a_second_request_with_a_rid_in_flight_is_refused(engine: RunningEngine) -> None:
    engine.in_background("1+1=", tokens=2000, rid="mine")
    assert "mine" in engine.post("/generate", {"text": "1", "rid": "mine"}).json()["error"]["message"]


def test_a_diverged_checkpoint_is_served_and_does_not_end_the_engine(
    engine: RunningEngine, second: Path, tmp_path: Path
) -> None:
    folder = copytree(second, tmp_path / "nan")
    rewrite(lambda tensors: tensors[NORM].fill_(math.nan))(folder)
    engine.update(folder, "nan").raise_for_status()
    answer = engine.generate("1", tokens=3, return_logprob=True, sampling_params={"temperature": 1.0})
    assert answer["meta_info"]["output_token_logprobs"][0][0] is None


def test_server_info_keeps_the_version_of_the_start(engine: RunningEngine) -> None:
    assert engine.get("/server_info").json()["weight_version"] == "default"


def test_the_port_of_a_running_engine_is_busy(engine: RunningEngine) -> None:
    port = httpx.URL(engine.base_url).port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))

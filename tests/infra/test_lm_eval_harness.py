"""lm-eval's own tasks on pinned engines give what lm-eval gives with the model in its own process, and Pinpoint's verdicts."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from infra.black_boxes.lm_eval_harness import HarnessSettings, LmEvalHarness
from infra.black_boxes.own_engine import OwnEngine
from infra.datasets import load_problems
from infra.errors import ChatTemplateMissing, ConfigError, EngineRefused, PinViolation
from infra.model import DatasetSpec, EvalPoint, Manifest, Sampling
from infra.running import run_samples
from infra.snapshot import describe, validate
from tests.engines.launching import RunningEngine, embedded_engine, wait_until
from tests.fakes.engine import FakeEngine
from tests.infra.harness_tasks import logged, write_choosing, write_generating, write_scoring, write_task
from tests.infra.models import TEMPLATE
from tests.sglang.launching import sglang_engine
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

pytestmark = pytest.mark.slow
POINT = EvalPoint(run="run", step=7)
PROMPTS = [f"{number:02d}+{number % 7:02d}=" for number in range(20)]
TASKS = ("sums", "choices", "texts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose greedy answers differ from prompt to prompt, with a chat template."""
    made = tmp_path_factory.mktemp("lm-eval") / "model"
    build_model(1, hidden=32, layers=2).save_pretrained(made)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[RunningEngine]:
    with embedded_engine(folder) as running:
        yield running


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Their folder; what lm-eval makes of their data, and the variables that it reads, are gone after the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
    made = tmp_path / "tasks"
    write_generating(made, "sums", [{"prompt": prompt, "answer": "1"} for prompt in PROMPTS])
    choices = [{"question": prompt, "choices": ["7", "a", "12", "(x)"], "gold": n % 4} for n, prompt in enumerate(PROMPTS)]
    write_choosing(made, "choices", choices)
    write_scoring(made, "texts", [f"{prompt}{len(prompt)}" for prompt in PROMPTS[:5]] + ["1*2=2 " * 60])
    return made


def given(folder: Path) -> dict[str, Any]:
    """What a point's task tells a black box of `folder`."""
    manifest = describe(folder, validate(folder), POINT)
    return {**asdict(POINT), "manifest": TypeAdapter(Manifest).dump_python(manifest, mode="json")}


async def evaluate(folder: Path, **settings: Any) -> Mapping[str, float]:
    harness = LmEvalHarness(settings)
    try:
        return await harness.evaluate_checkpoint(folder, given(folder))
    finally:
        await harness.dispose()


@pytest.mark.parametrize("changes", [{}, {"num_fewshot": 2}, {"apply_chat_template": True}, {"limit": 3}], ids=str)
async def test_every_answer_and_score_is_that_of_lm_evals_own_way(
    engine: RunningEngine, folder: Path, tasks: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = {"tasks": TASKS, "include_path": str(tasks), "samples_dir": str(tmp_path / "samples"), **changes}
    found = await evaluate(folder, url=engine.base_url, **settings)
    oracle = by_transformers(folder, tasks, changes)
    for task in TASKS:
        ours, theirs = logged(tmp_path / "samples", task), oracle["samples"][task]
        assert len(ours) == changes.get("limit", len(ours))
        assert [sample["arguments"] for sample in ours] == [listed(sample["arguments"]) for sample in theirs]
        assert flat([sample["resps"] for sample in ours]) == pytest.approx(flat([s["resps"] for s in theirs]), abs=1e-3)
        metrics = {key.split(",")[0]: value for key, value in oracle["results"][task].items() if key.endswith(",none")}
        known = {f"{task}/{name}": value for name, value in metrics.items() if value != "N/A"}
        assert {name: value for name, value in found.items() if name.startswith(f"{task}/")} == pytest.approx(known, rel=1e-3)
        assert known


@pytest.mark.sglang
async def test_real_sglang_gives_the_same_up_to_its_rounding(
    folder: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sglang_engine(folder) as running:
        monkeypatch.setenv("KEY_OF_SGLANG", running.api_key or "")
        settings = {"url": running.base_url, "api_key_variable": "KEY_OF_SGLANG", "samples_dir": str(tmp_path / "samples")}
        found = await evaluate(folder, tasks=TASKS, include_path=str(tasks), **settings)
    oracle = by_transformers(folder, tasks, {})
    for task, metric, rounding in (("sums", "exact_match", 0), ("choices", "acc", 0.05), ("texts", "word_perplexity", 0.3)):
        ours, theirs = logged(tmp_path / "samples", task), oracle["samples"][task]
        assert flat([s["resps"] for s in ours]) == pytest.approx(flat([s["resps"] for s in theirs]), abs=rounding)
        assert found[f"{task}/{metric}"] == pytest.approx(oracle["results"][task][f"{metric},none"], rel=0.1)


def by_transformers(folder: Path, tasks: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """lm-eval with the model in this process; its windows are as long as an engine leaves room for."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    model = {"pretrained": str(folder), "dtype": "float32", "max_length": 120}
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    return dict(
        simple_evaluate("hf", model_args=model, tasks=list(TASKS), device="cpu", batch_size=1, task_manager=manager, **changes)
    )


def listed(value: Any) -> Any:
    return [listed(one) for one in value] if isinstance(value, list | tuple) else value


def flat(value: Any) -> dict[str, Any]:
    """Numbers and texts by where they are in nested lists, as `approx` wants them."""
    if not isinstance(value, list | tuple):
        return {"": value}
    return {f"{n}.{place}": leaf for n, one in enumerate(value) for place, leaf in flat(one).items()}


async def test_verdicts_are_pinpoints_own_on_the_same_data(
    engine: RunningEngine, folder: Path, tasks: Path, tmp_path: Path
) -> None:
    responses = [engine.generate(prompt, sampling_params={"ignore_eos": False})["text"] for prompt in PROMPTS]
    rows = [{"prompt": p, "answer": r if n % 2 else "0"} for n, (p, r) in enumerate(zip(PROMPTS, responses, strict=True))]
    write_generating(tasks, "rows", rows)
    spec = DatasetSpec(name="rows", source=str(tasks / "rows.jsonl"), sampling=Sampling(max_new_tokens=8))
    attached = OwnEngine({"url": engine.base_url}, owner="test", others=())
    samples = await run_samples(await attached.pinned(folder, given(folder)), spec, load_problems(spec), str)
    settings = {"tasks": "rows", "include_path": str(tasks), "samples_dir": str(tmp_path / "samples")}
    found = await evaluate(folder, url=engine.base_url, **settings)
    ours = logged(tmp_path / "samples", "rows")
    assert [sample["resps"][0][0] for sample in ours] == [sample.response for sample in samples]
    assert [sample["exact_match"] for sample in ours] == [sample.reward for sample in samples]
    assert found["rows/exact_match"] == 0.5


async def test_it_launches_an_engine_of_its_own_and_ends_it(folder: Path, tasks: Path) -> None:
    harness = LmEvalHarness({"engine": "embedded", "tasks": "sums", "include_path": str(tasks), "limit": 2})
    found = await harness.evaluate_checkpoint(folder, given(folder))
    assert harness.engine.host is not None
    process = harness.engine.host.process
    assert process is not None
    await harness.dispose()
    assert process.poll() is not None
    assert found.keys() == {"sums/exact_match", "sums/exact_match_stderr"}


async def test_generation_kwargs_given_here_override_those_of_the_task(
    engine: RunningEngine, folder: Path, tasks: Path, tmp_path: Path
) -> None:
    settings = {"tasks": "sums", "include_path": str(tasks), "samples_dir": str(tmp_path), "gen_kwargs": {"max_gen_toks": 3}}
    await evaluate(folder, url=engine.base_url, **settings)
    assert {len(sample["resps"][0][0]) for sample in logged(tmp_path, "sums")} == {3}


async def test_what_a_chat_template_has_begun_gets_no_second_first_token(folder: Path, tasks: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(folder, tmp_path / "checkpoint")
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "<bos>" + TEMPLATE
    tokenizer.save_pretrained(checkpoint)
    with FakeEngine() as fake:
        fake.answers = lambda _: "7"
        await evaluate(checkpoint, url=fake.base_url, tasks="sums", include_path=str(tasks), apply_chat_template=True)
        bodies = [body for _, path, body in fake.requests if path == "/generate"]
    asked = [body["input_ids"] for body in bodies if body["sampling_params"]["max_new_tokens"]]  # the canary generates nothing
    assert {ids.count(tokenizer.bos_token_id) for ids in asked} == {1}


async def test_one_response_of_another_version_leaves_no_number(folder: Path, tasks: Path) -> None:
    with FakeEngine() as fake:
        fake.foreign_at = 5
        with pytest.raises(PinViolation, match="someone/1/0/else"):
            await evaluate(folder, url=fake.base_url, tasks="sums", include_path=str(tasks))


async def test_neither_does_one_score_of_another_version(folder: Path, tasks: Path) -> None:
    with FakeEngine() as fake:

        def move(prompt: str) -> str:
            """Generating comes first, so the move is after the pinning and before the scores."""
            fake.scored_by = "someone/1/0/else"
            return "7"

        fake.answers = move
        with pytest.raises(PinViolation, match="someone/1/0/else"):
            await evaluate(folder, url=fake.base_url, tasks="sums,choices", include_path=str(tasks))


async def test_weights_that_move_while_it_runs_leave_no_number(folder: Path, tasks: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    build_model(2, hidden=32, layers=2).save_pretrained(moved)
    write_generating(tasks, "long", [{"prompt": f"{n:03d}=", "answer": "1"} for n in range(200)], max_tokens=100)
    with embedded_engine(folder) as running:

        def move() -> None:
            wait_until(lambda: running.running() > 0, timeout_s=120, every_s=0.01)
            running.update(moved, "somebody else's").raise_for_status()

        (moving := threading.Thread(target=move)).start()
        with pytest.raises(PinViolation, match="somebody else's, pinned is run/7/0"):
            await evaluate(folder, url=running.base_url, tasks="long", include_path=str(tasks))
        moving.join()


async def test_a_prompt_that_does_not_fit_is_refused_not_cut(engine: RunningEngine, folder: Path, tasks: Path) -> None:
    write_generating(tasks, "long", [{"prompt": "1+" * 70, "answer": "1"}])
    with pytest.raises(EngineRefused, match="context length of 128"):
        await evaluate(folder, url=engine.base_url, tasks="long", include_path=str(tasks))


async def test_a_snapshot_without_a_chat_template_is_refused_where_one_is_asked_for(
    engine: RunningEngine, tasks: Path, tmp_path: Path
) -> None:
    build_model(1, hidden=32, layers=2).save_pretrained(tmp_path / "plain")
    build_tokenizer().save_pretrained(tmp_path / "plain")
    settings = {"tasks": "sums", "include_path": str(tasks), "apply_chat_template": True}
    with pytest.raises(ChatTemplateMissing, match="has no chat template"):
        await evaluate(tmp_path / "plain", url=engine.base_url, **settings)


async def test_a_cancelled_evaluation_leaves_no_thread_behind(folder: Path, tasks: Path) -> None:
    asked, released = threading.Event(), threading.Event()

    def hang(prompt: str) -> str:
        asked.set()
        released.wait(60)
        return "7"

    with FakeEngine() as fake:
        fake.answers = hang
        running = asyncio.create_task(evaluate(folder, url=fake.base_url, tasks="sums", include_path=str(tasks)))
        assert await asyncio.to_thread(asked.wait, 60)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=10)
        released.set()
        assert done
        assert running.cancelled()


async def test_filters_that_a_task_names_are_in_the_names_of_its_metrics(
    engine: RunningEngine, folder: Path, tasks: Path
) -> None:
    filters = [{"name": name, "filter": [{"function": "take_first"}]} for name in ("strict", "loose")]
    metrics = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
    rows = [{"prompt": prompt, "answer": "1"} for prompt in PROMPTS]
    text = {"doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}", "generation_kwargs": {"max_gen_toks": 2, "until": []}}
    write_task(tasks, "two", rows, output_type="generate_until", filter_list=filters, metric_list=metrics, **text)
    found = await evaluate(folder, url=engine.base_url, tasks="two", include_path=str(tasks))
    names = {f"two/{metric}/{name}" for metric in ("exact_match", "exact_match_stderr") for name in ("strict", "loose")}
    assert found.keys() == names


async def test_the_example_of_the_page_gives_what_the_page_says(
    engine: RunningEngine, folder: Path, tasks: Path, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "black-box.md").read_text().replace("/data", str(tmp_path))
    example = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    (tasks / "sums.yaml").write_text(example[1])
    [row] = re.findall(r"rows like (\{.*\})", example[1])
    (tmp_path / "sums.jsonl").write_text(f"{row}\n" * 2)
    settings = dict(pair.split("=") for pair in re.findall(r"--set (\S+)", page.partition("### Tasks of lm-eval")[2]))
    found = await evaluate(folder, url=engine.base_url, **settings)
    assert {f"`{name}`" for name in found} <= set(re.findall(r"`[^`\n]+`", page))
    assert [sample["target"] for sample in logged(tmp_path / "samples", "sums")] == ["42", "42"]


def test_every_setting_has_its_row_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "black-box.md").read_text()
    assert set(HarnessSettings.model_fields) == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_a_task_that_lm_eval_does_not_know_is_refused_by_name(tasks: Path) -> None:
    settings = {"url": "http://127.0.0.1:1", "include_path": str(tasks)}
    with pytest.raises(ConfigError, match="lm-eval knows no task 'choicse': did you mean 'choices'"):
        LmEvalHarness({**settings, "tasks": "sums, choicse"})
    with pytest.raises(ConfigError, match="knows no task 'qqqqqqqqqqqqqqqq': give include_path"):
        LmEvalHarness({**settings, "tasks": "qqqqqqqqqqqqqqqq"})


def test_nothing_is_fetched_from_a_hub(tasks: Path) -> None:
    program = (
        "import sys; from infra.black_boxes.lm_eval_harness import LmEvalHarness\n"
        "LmEvalHarness({'url': 'http://127.0.0.1:1', 'tasks': 'sums', 'include_path': sys.argv[1]})\n"
        "import datasets, huggingface_hub\n"
        "print(huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_DATASETS_OFFLINE)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    command = [sys.executable, "-c", program, str(tasks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["True", "True"]

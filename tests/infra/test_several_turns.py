"""The example of a `generate` function on the page about suites runs, turn by turn, on the pinned engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from infra.attaching import attach
from infra.datasets import load_problems
from infra.model import DatasetSpec, EvalPoint, LiveRequest, Suite
from infra.prompts import renderer_of
from infra.running import run_samples
from tests.fakes.engine import FakeEngine
from tests.infra.examples import jsonl
from trainer_integration.tiny_trainer.model import build_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "suites.md"
KEY = "engine-key"


async def test_the_example_asks_a_second_time_with_the_conversation_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "asks_again.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "<bos>{% for message in messages %}[{{ message.role }} {{ message.content }}]{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    row = {"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}
    source = jsonl(tmp_path / "d.jsonl", json.dumps(row))
    spec = DatasetSpec(name="d", source=source, apply_chat_template=True, generate="asks_again:generate")
    with FakeEngine(KEY) as engine:
        engine.version = "17"
        answers = iter(("3", "2"))
        engine.answers = lambda _: next(answers)
        request = LiveRequest(
            point=EvalPoint(run="run", step=40),
            engines=(engine.base_url,),
            suite=Suite(name="s", datasets=(spec,)),
            store_url="file:///store",
            tokenizer=str(tmp_path / "tokenizer"),
        )
        fleet = await attach(request, KEY)
        (sample,) = await run_samples(fleet, spec, load_problems(spec), renderer_of(fleet, spec))
        asked = [body["input_ids"] for _, path, body in engine.requests if path == "/generate"]
    texts = ["[user 1+1=]", "[user 1+1=][assistant 3][user Are you sure?]"]
    assert asked == [tokenizer.encode("<bos>" + text, add_special_tokens=False) for text in texts]  # the first token once
    assert (sample.prompt, sample.response, sample.reward) == ("1+1=", "2", 1.0)

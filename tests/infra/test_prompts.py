"""A prompt is what the model's own chat template makes of a row, a message or a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from infra.errors import ConfigError
from infra.model import Problem, SnapshotRef
from infra.prompts import ChatTemplate, as_it_is, chat_renderer
from infra.snapshot import describe
from tests.infra.examples import POINT, dataset
from trainer_integration.tiny_trainer.model import build_tokenizer

TEMPLATE = """\
{%- if tools %}<tools>{{ tools | length }}</tools>{% endif -%}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ raise_exception('no tools, please') }}{% endif -%}
<{{ message.role }}>{{ message.content }}
{%- endfor -%}
<assistant>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"""


@pytest.fixture
def snapshot(tmp_path: Path) -> SnapshotRef:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    folder = tmp_path / "snapshot"
    tokenizer.save_pretrained(folder)
    manifest = describe(folder, [file.name for file in folder.iterdir()], POINT)
    return SnapshotRef(point=POINT, location=folder.as_uri(), manifest=manifest, owned=False)


def renderer(snapshot: SnapshotRef, **changes: Any) -> ChatTemplate:
    return chat_renderer(snapshot, dataset(apply_chat_template=True, **changes))


def problem(**changes: Any) -> Problem:
    return Problem(**{"id": "p", "prompt": "1+1=", "answer": "2", "entry": {}, **changes})


SYSTEM, USER = {"role": "system", "content": "Own."}, {"role": "user", "content": "Hi"}


def test_a_prompt_is_a_users_message(snapshot: SnapshotRef) -> None:
    render = renderer(snapshot)
    assert render(problem()) == render("1+1=") == render([{"role": "user", "content": "1+1="}]) == "<user>1+1=<assistant>"


def test_a_system_prompt_comes_first_unless_the_row_has_its_own(snapshot: SnapshotRef) -> None:
    render = renderer(snapshot, system_prompt="Be brief.")
    assert render(problem()) == "<system>Be brief.<user>1+1=<assistant>"
    assert render(problem(messages=(USER,))) == "<system>Be brief.<user>Hi<assistant>"
    assert render(problem(messages=(SYSTEM, USER))) == "<system>Own.<user>Hi<assistant>"


def test_messages_are_asked_and_not_their_text(snapshot: SnapshotRef) -> None:
    turns = (USER, {"role": "assistant", "content": "?"}, {"role": "user", "content": "1+1="})
    assert renderer(snapshot)(problem(messages=turns, prompt="for people")) == "<user>Hi<assistant>?<user>1+1=<assistant>"


def test_tools_and_options_reach_the_template(snapshot: SnapshotRef) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    assert renderer(snapshot)(problem(tools=(tool, tool))) == "<tools>2</tools><user>1+1=<assistant>"
    render = renderer(snapshot, chat_template_kwargs={"enable_thinking": False})
    assert render(problem()) == "<user>1+1=<assistant><think></think>"


def test_what_a_template_refuses_is_told_with_its_words(snapshot: SnapshotRef) -> None:
    with pytest.raises(ConfigError, match="dataset sums: the chat template of .* refuses what is asked: no tools, please"):
        renderer(snapshot)([{"role": "tool", "content": "4"}])


def test_an_engine_that_would_write_the_first_token_again_is_given_tokens(snapshot: SnapshotRef) -> None:
    template = renderer(snapshot)
    tokenizer = build_tokenizer()
    text = "<bos>1+1="
    assert template.sent(text) == tokenizer.encode("1+1=")  # one first token, and not what the engine would make: two
    assert len(tokenizer.encode(text)) == 1 + len(tokenizer.encode("1+1="))
    assert template.sent(text + "2") == tokenizer.encode("1+1=2")
    with pytest.raises(UnicodeEncodeError):
        template.sent("\ud800")


def test_an_engine_that_adds_nothing_is_given_the_text(snapshot: SnapshotRef) -> None:
    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(snapshot.location.removeprefix("file://"))
    assert renderer(snapshot).sent("<bos>1+1=") == "<bos>1+1="


def test_without_a_template_a_prompt_is_as_it_is_and_messages_are_refused() -> None:
    assert as_it_is(problem()) == as_it_is("1+1=") == "1+1="
    with pytest.raises(ConfigError, match="set apply_chat_template: true"):
        as_it_is([USER])

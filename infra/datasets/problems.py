"""A row becomes a problem by the dataset's own keys, patterns and template, or is named with what it lacks."""

from __future__ import annotations

import json
import re
import string
from typing import Any

import xxhash

from infra.datasets.rows import Row
from infra.model import Choices, DatasetSpec, Message, Problem

COMPARED = ("exact", "numeric", "contains", "normalised", "f1", "regex", "multiple_choice", "math")  # with one answer


def problem_of(spec: DatasetSpec, row: Row, number: int) -> Problem:
    """`number` counts rows from 1, and names those without an `id`. Raises DatasetError."""
    shuffled = _shuffled(spec.choices, row) if spec.choices else {}
    messages = _messages(spec, row) if spec.prompt_template is None else ()
    return Problem(
        id=str(row.fields.get("id", number)),
        prompt=as_text(messages) if messages else _prompt(spec, row, shuffled),
        answer=shuffled["answer_letter"] if shuffled else _answer(spec, row),
        entry=row.fields,
        messages=messages,
        tools=_tools(spec, row),
    )


def as_text(messages: tuple[Message, ...]) -> str:
    """For people and graders: one message as it is, several with who said them."""
    if len(messages) == 1:
        return _said(messages[0])
    return "\n\n".join(f"{message['role']}: {_said(message)}" for message in messages)


def _said(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _answer(spec: DatasetSpec, row: Row) -> str:
    answer = row.fields.get(spec.answer_key)
    if isinstance(answer, list) and spec.grader.name in COMPARED and spec.answer_key_pattern is None:
        if len(answer) != 1:
            several = f"has {len(answer)} answers in {spec.answer_key!r}, and a row can have one"
            raise row.bad(f"{several}; a custom grader is given all of them as JSON")
        (answer,) = answer
    if answer is None:
        raise row.bad(f"has no {spec.answer_key!r}; its keys: {', '.join(row.fields)}")
    text = json.dumps(answer, ensure_ascii=False, default=str) if isinstance(answer, dict | list | bool) else str(answer)
    if spec.answer_key_pattern is None:
        return text
    found = re.search(spec.answer_key_pattern, text)
    if found is None:
        raise row.bad(f"answer_key_pattern {spec.answer_key_pattern!r} is not found in {text[-80:]!r}")
    return str(found.group(1 if found.re.groups else 0))


def _prompt(spec: DatasetSpec, row: Row, shuffled: dict[str, str]) -> str:
    if spec.prompt_template is None:
        return _text(spec, row)
    fields = {**row.fields, **_captured(spec, row), **shuffled}
    try:
        return spec.prompt_template.format(**fields)
    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        template = f"{spec.prompt_template!r:.200}"
        raise row.bad(f"does not fill prompt_template {template}: {error!r}; its keys: {', '.join(fields)}") from None


def _captured(spec: DatasetSpec, row: Row) -> dict[str, str]:
    """The named groups that `prompt_pattern` finds in the row's prompt."""
    if spec.prompt_pattern is None:
        return {}
    found = re.search(spec.prompt_pattern, text := _text(spec, row))
    if found is None:
        raise row.bad(f"prompt_pattern {spec.prompt_pattern!r} is not found in {text[:80]!r}")
    return found.groupdict(default="")


def _text(spec: DatasetSpec, row: Row) -> str:
    prompt = row.fields.get(spec.prompt_key)
    if not isinstance(prompt, str):
        raise row.bad(f"has no text in {spec.prompt_key!r}; its keys: {', '.join(row.fields)}")
    return prompt


def _messages(spec: DatasetSpec, row: Row) -> tuple[Message, ...]:
    """Those that the row's prompt is, none if it is something else."""
    given = row.fields.get(spec.prompt_key)
    if not isinstance(given, list):
        return ()
    if not spec.apply_chat_template:
        raise row.bad(f"has chat messages in {spec.prompt_key!r}: set apply_chat_template: true")
    messages = tuple(_message(message, row) for message in given)
    if not messages or messages[-1]["role"] == "assistant":
        raise row.bad("has no message to answer: the last one is the assistant's" if messages else "has no chat messages")
    return messages


def _message(message: Any, row: Row) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise row.bad(f"has a chat message without a role: {message!r:.80}")
    held = {key: value for key, value in message.items() if value is not None}
    content = held.get("content")
    parts = content if isinstance(content, list) else []
    if any(not isinstance(part, dict) or not isinstance(part.get("text"), str) for part in parts):
        raise row.bad("has a chat message with a part that is no text, and only texts can be asked")
    if not isinstance(content, str | list) and "tool_calls" not in held:
        raise row.bad(f"has a chat message of role {held['role']!r} without content")
    return held


def _tools(spec: DatasetSpec, row: Row) -> tuple[dict[str, Any], ...]:
    tools = row.fields.get(spec.tools_key, []) if spec.tools_key else []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise row.bad(f"has no list of JSON schemas in {spec.tools_key!r}: {tools!r:.80}")
    return tuple(tools)


def _shuffled(choices: Choices, row: Row) -> dict[str, str]:
    """`choices`, a line each, and `answer_letter`; equal choices of equal seed come in the same order, wherever the row is."""
    texts = [_choice(key, row) for key in (choices.right, *choices.wrong)]
    drawn = xxhash.xxh3_128_hexdigest("\0".join([str(choices.seed), *texts]).encode(errors="surrogatepass"))
    order = sorted(range(len(texts)), key=lambda place: xxhash.xxh3_64_intdigest(f"{drawn} {place}".encode()))
    lines = [f"{letter}) {texts[place]}" for letter, place in zip(string.ascii_uppercase, order, strict=False)]
    return {"choices": "\n".join(lines), "answer_letter": string.ascii_uppercase[order.index(0)]}


def _choice(key: str, row: Row) -> str:
    if row.fields.get(key) is None:
        raise row.bad(f"has no {key!r}, a choice; its keys: {', '.join(row.fields)}")
    return str(row.fields[key]).strip()

"""A prompt is what the measured model's own tokenizer and chat template make of it, never another model's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from infra.errors import ConfigError, SnapshotInvalid
from infra.model import DatasetSpec, LiveFleet, Message, Pinned, Problem, SnapshotRef
from infra.store import split_location
from infra.validation.layout import METADATA
from infra.validation.resolve import resolve_checkpoint

Asked = Problem | str | Sequence[Message]  # a row, a user's message, or a conversation that goes on
Render = Callable[[Asked], str]


def renderer_of(pinned: Pinned, spec: DatasetSpec) -> Render:
    """Makes what is asked into the text that the engine sees.

    A snapshot brings its template; where that of a live model is, its trainer says.
    Raises SnapshotMissing for a tokenizer that is not there, SnapshotInvalid if it has no chat template.
    """
    if not spec.apply_chat_template:
        return as_it_is
    if not isinstance(pinned, LiveFleet):
        return chat_renderer(pinned.snapshot, spec)
    if pinned.tokenizer is None:
        raise ConfigError("the chat template of a live model is looked for where 'tokenizer' says: give it")
    return ChatTemplate(str(resolve_checkpoint(pinned.tokenizer)), pinned.tokenizer, spec)


def as_it_is(asked: Asked) -> str:
    """A prompt without a template. Raises ConfigError for chat messages, which need one."""
    if not isinstance(asked, Problem | str):
        raise ConfigError("chat messages need a chat template: set apply_chat_template: true")
    return str(asked)


def chat_renderer(snapshot: SnapshotRef, spec: DatasetSpec) -> ChatTemplate:
    """Raises SnapshotInvalid if neither the snapshot nor, of an adapter, its base brings a chat template."""
    with tempfile.TemporaryDirectory(prefix="pinpoint-tokenizer-") as folder:
        if snapshot.manifest.base is not None:
            _bring(snapshot.manifest.base.location, METADATA, Path(folder))
        _bring(snapshot.location, snapshot.manifest.files, Path(folder))
        return ChatTemplate(folder, snapshot.location, spec)


def _bring(location: str, names: Iterable[str], folder: Path) -> None:
    store, prefix = split_location(location)
    for name in set(names) & set(METADATA):
        if store.exists(f"{prefix}/{name}"):
            store.download(f"{prefix}/{name}", folder / name)


class ChatTemplate:
    """What the template of a model makes of what is asked: a text with all special tokens in it."""

    def __init__(self, folder: str, called: str, spec: DatasetSpec) -> None:
        """`called` is where the tokenizer in `folder` is from. Raises SnapshotInvalid if it has no chat template."""
        from transformers import AutoTokenizer

        self.called, self.spec = called, spec
        self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if not self._tokenizer.chat_template:
            raise SnapshotInvalid(
                f"{called} has no chat template, but the suite asks for one: save it with the tokenizer, "
                "or set apply_chat_template: false",
                subject="chat_template.jinja",
            )
        self._adds_tokens = bool(self._tokenizer.encode(""))

    def __call__(self, asked: Asked) -> str:
        """Raises ConfigError for what the template refuses: system messages, if its model knows none."""
        from jinja2 import TemplateError

        tools = list(asked.tools) if isinstance(asked, Problem) and asked.tools else None
        options = {**self.spec.chat_template_kwargs, "tokenize": False, "add_generation_prompt": True}
        try:
            text: str = self._tokenizer.apply_chat_template(_conversation(asked, self.spec), tools=tools, **options)
        except TemplateError as error:
            raise ConfigError(
                f"dataset {self.spec.name}: the chat template of {self.called} refuses what is asked: {error}"
            ) from None
        return text

    def sent(self, text: str) -> str | list[int]:
        """How an engine is given a text with all special tokens in it: as its tokens, if it would add some of its own.

        Many tokenizers begin every text with their first token, which the template has written already. Raises
        UnicodeEncodeError for a text that is none.
        """
        if not self._adds_tokens:
            return text
        text.encode()  # the tokenizer's own complaint about half a surrogate pair is a TypeError
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens


def _conversation(asked: Asked, spec: DatasetSpec) -> list[dict[str, Any]]:
    if isinstance(asked, Problem):
        asked = asked.messages or asked.prompt
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
    if spec.system_prompt is not None and (not messages or messages[0]["role"] != "system"):
        messages.insert(0, {"role": "system", "content": spec.system_prompt})
    return messages

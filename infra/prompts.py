"""A prompt is what the measured model's own tokenizer and chat template make of it, never another model's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from infra.errors import ConfigError, SnapshotInvalid
from infra.model import LiveFleet, Pinned, SnapshotRef
from infra.store import split_location
from infra.validation.layout import METADATA
from infra.validation.resolve import resolve_checkpoint

Render = Callable[[str], str]


def renderer_of(pinned: Pinned) -> Render:
    """Makes a user's message into the text that asks for the assistant's reply.

    A snapshot brings its template; where that of a live model is, its trainer says.
    Raises SnapshotMissing for a tokenizer that is not there, SnapshotInvalid if it has no chat template.
    """
    if not isinstance(pinned, LiveFleet):
        return chat_renderer(pinned.snapshot)
    if pinned.tokenizer is None:
        raise ConfigError("the chat template of a live model is looked for where 'tokenizer' says: give it")
    return _renderer(str(resolve_checkpoint(pinned.tokenizer)), pinned.tokenizer)


def chat_renderer(snapshot: SnapshotRef) -> Render:
    """Raises SnapshotInvalid if neither the snapshot nor, of an adapter, its base brings a chat template."""
    with tempfile.TemporaryDirectory(prefix="pinpoint-tokenizer-") as folder:
        if snapshot.manifest.base is not None:
            _bring(snapshot.manifest.base.location, METADATA, Path(folder))
        _bring(snapshot.location, snapshot.manifest.files, Path(folder))
        return _renderer(folder, snapshot.location)


def _bring(location: str, names: Iterable[str], folder: Path) -> None:
    store, prefix = split_location(location)
    for name in set(names) & set(METADATA):
        if store.exists(f"{prefix}/{name}"):
            store.download(f"{prefix}/{name}", folder / name)


def _renderer(folder: str, called: str) -> Render:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if not tokenizer.chat_template:
        raise SnapshotInvalid(
            f"{called} has no chat template, but the suite asks for one: save it with the tokenizer, "
            "or set apply_chat_template: false",
            subject="chat_template.jinja",
        )

    def render(prompt: str) -> str:
        message = [{"role": "user", "content": prompt}]
        text: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return text

    return render

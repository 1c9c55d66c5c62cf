"""A prompt is what the snapshot's own tokenizer and chat template make of it, never another model's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from infra.errors import SnapshotInvalid
from infra.model import SnapshotRef
from infra.store import split_location
from infra.validation.layout import METADATA


def chat_renderer(snapshot: SnapshotRef) -> Callable[[str], str]:
    """Makes a user's message into the text that asks for the assistant's reply.

    Raises SnapshotInvalid if the snapshot brings no chat template.
    """
    from transformers import AutoTokenizer

    store, prefix = split_location(snapshot.location)
    with tempfile.TemporaryDirectory(prefix="pinpoint-tokenizer-") as folder:
        for name in snapshot.manifest.files:
            if name in METADATA:
                store.download(f"{prefix}/{name}", Path(folder) / name)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if not tokenizer.chat_template:
        raise SnapshotInvalid(
            f"{snapshot.location} has no chat template, but the suite asks for one: save it with the tokenizer, "
            "or set apply_chat_template: false",
            subject="chat_template.jinja",
        )

    def render(prompt: str) -> str:
        message = [{"role": "user", "content": prompt}]
        text: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return text

    return render

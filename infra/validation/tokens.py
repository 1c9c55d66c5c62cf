"""A tokenizer belongs to its model: it loads without code of its own, its ids have rows, and all agree where a text ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.errors import ChatTemplateMissing, ConfigInvalid, EosDisagrees, SnapshotInvalid, TokenizerInvalid, TokenizerTooLarge
from infra.validation.layout import Report

GENERATION = "generation_config.json"
# Tokens that stand for what is no text. Gemma 3's text models share a tokenizer that has them, and have no row for them.
_PLACEHOLDER = re.compile(r"(image|video|audio|boi|eoi|boa|eoa)_token")


def load_tokenizer(folder: Path) -> Any:
    """Raises TokenizerInvalid naming what transformers says is wrong with it."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        subject = _subject(folder)
        message = f"the tokenizer of {subject} can't be loaded ({_line(error)}): save it again with the model"
        raise TokenizerInvalid(message, subject=subject) from error


def _subject(folder: Path) -> str:
    present = [name for name in ("tokenizer.json", "tokenizer.model", "vocab.json") if (folder / name).is_file()]
    return present[0] if present else "tokenizer.json"


def check_tokenizer(
    tokenizer: Any, config: Mapping[str, Any], generation: Mapping[str, Any], *, needs_chat_template: bool, report: Report
) -> None:
    size = config.get("vocab_size")
    nowhere = {str(token) for kind, token in tokenizer.special_tokens_map.items() if _PLACEHOLDER.match(kind)}
    known = ((number, token) for token, number in tokenizer.get_vocab().items() if token not in nowhere)
    largest, token = max(known, default=(-1, ""))
    if isinstance(size, int) and largest >= size:
        message = f"tokenizer.json gives token {token!r} the id {largest}, but config.json has vocab_size {size}"
        report(TokenizerTooLarge(f"{message}: save this model's tokenizer, or resize its embedding", subject="tokenizer.json"))
    stated, generated = config.get("eos_token_id"), generation.get("eos_token_id")
    faults = [_no_ids("config.json", stated), _no_ids(GENERATION, generated)]
    if not any(faults):
        faults = [_eos_fault(tokenizer.eos_token_id, _ids(stated), _ids(generated), size)]
    for fault in filter(None, faults):
        report(fault)
    if needs_chat_template and not tokenizer.chat_template:
        message = "chat_template.jinja is missing, but the suite renders prompts with it: save it with the tokenizer"
        report(ChatTemplateMissing(f"{message}, or set apply_chat_template: false", subject="chat_template.jinja"))


def _no_ids(name: str, stated: Any) -> SnapshotInvalid | None:
    if all(type(one) is int for one in (stated if isinstance(stated, list | tuple) else [0 if stated is None else stated])):
        return None
    message = f"{name} has eos_token_id {stated!r:.60}, which is neither a number nor a list of numbers: save it again"
    return ConfigInvalid(message, subject=name)


def _ids(stated: Any) -> set[int] | None:
    return None if stated is None else set(stated) if isinstance(stated, list | tuple) else {stated}


def _eos_fault(token: int | None, config: set[int] | None, generation: set[int] | None, size: Any) -> SnapshotInvalid | None:
    """Each names none or some; the tokenizer's one is among each, and of two sets one holds the other."""
    said = f"tokenizer {token}, config.json {_text(config)}, {GENERATION} {_text(generation)}"
    for name, ids in (("config.json", config), (GENERATION, generation)):
        if ids is not None and token is not None and token not in ids:
            return _disagree(f"the tokenizer's eos id is not among those of {name} ({said})", name)
        if isinstance(size, int) and any(not 0 <= one < size for one in ids or ()):
            return _disagree(f"{name} has an eos id outside of the vocabulary of {size} ({said})", name)
    if config is not None and generation is not None and not (config <= generation or generation <= config):
        return _disagree(f"config.json and {GENERATION} have different eos ids ({said})", GENERATION)
    return None


def _disagree(problem: str, subject: str) -> EosDisagrees:
    return EosDisagrees(f"{problem}: a text would end at another token than in training; make them the same", subject=subject)


def _text(ids: set[int] | None) -> str:
    return "none" if ids is None else ", ".join(map(str, sorted(ids)))


def read_generation(folder: Path) -> dict[str, Any]:
    """{} if there is none. Raises ValueError if it can't be read."""
    path = folder / GENERATION
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

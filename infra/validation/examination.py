"""A checkpoint is valid only if everything here holds; each fault has its own class and names its tensor or file.

It costs some small reads and no GPU: headers, the metadata files, and samples of the weights. Blocks; loads transformers.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.architecture import Promise, promise_of
from infra.errors import ConfigInvalid, RemoteCodeRefused, SnapshotInvalid
from infra.validation.adapters import adapter_files, base_of, examine_adapter, is_adapter
from infra.validation.layout import CONFIG, TOKENIZER_FILES, Contents, Report, raise_it, read_contents
from infra.validation.readers import CheckpointReader
from infra.validation.tensors import check_names, check_tensors
from infra.validation.tokens import GENERATION, check_tokenizer, load_tokenizer, read_generation
from infra.validation.values import check_dtypes, check_finite

logger = logging.getLogger(__name__)
MAX_METADATA_BYTES = 512 * 2**20
TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`notes` say what could not be checked, and why."""

    location: str
    files: tuple[str, ...]
    n_tensors: int
    n_bytes: int
    faults: tuple[SnapshotInvalid, ...]
    notes: tuple[str, ...]


def validate_checkpoint(
    reader: CheckpointReader, *, needs_chat_template: bool = False, trust_remote_code: bool = False
) -> list[str]:
    """The files that make up the snapshot.

    Raises SnapshotMissing if there is nothing, or the first fault, a SnapshotInvalid naming its tensor or file.
    """
    contents, notes = _examine(reader, needs_chat_template, trust_remote_code, raise_it)
    for note in notes:
        logger.warning("checkpoint %s: %s", contents.location, note)
    return contents.files


def faults(
    reader: CheckpointReader, *, needs_chat_template: bool = False, trust_remote_code: bool = False
) -> list[SnapshotInvalid]:
    """All that is wrong, not only the first. Raises SnapshotMissing if there is nothing."""
    verdict = examine(reader, needs_chat_template=needs_chat_template, trust_remote_code=trust_remote_code)
    return list(verdict.faults)


def examine(
    reader: CheckpointReader, *, needs_chat_template: bool = False, trust_remote_code: bool = False, base: str | None = None
) -> Verdict:
    """Of a checkpoint, or of a LoRA adapter, whose base is `base` or what its config names.

    Raises SnapshotMissing if there is nothing.
    """
    found: list[SnapshotInvalid] = []
    if is_adapter(reader):
        return _examine_adapter(reader, base, found)
    contents, notes = _examine(reader, needs_chat_template, trust_remote_code, found.append)
    return _verdict(contents, contents.files, found, notes)


def _examine_adapter(reader: CheckpointReader, base: str | None, found: list[SnapshotInvalid]) -> Verdict:
    contents = Contents(reader=reader, entries=reader.entries())
    try:
        base_reader = base_of(reader, base)
        contents = examine_adapter(reader, base_reader, found.append)
    except SnapshotInvalid as fault:
        return _verdict(contents, [], [*found, fault], ["the adapter was not compared with its base"])
    return _verdict(contents, adapter_files(contents), found, [f"the base, {base_reader.location}: check it by itself"])


def _verdict(contents: Contents, files: list[str], found: list[SnapshotInvalid], notes: list[str]) -> Verdict:
    return Verdict(
        location=contents.location,
        files=tuple(files),
        n_tensors=len(contents.spans),
        n_bytes=sum(contents.entries[name].size for name in files),
        faults=tuple(found),
        notes=tuple(notes),
    )


def _examine(reader: CheckpointReader, needs_chat_template: bool, trusted: bool, report: Report) -> tuple[Contents, list[str]]:
    contents = read_contents(reader, report)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pinpoint-check-") as name:
        folder = Path(name)
        if not _copy_metadata(contents, folder, report) or not _remote_code_allowed(folder, trusted, report):
            return contents, [*notes, "tensors and tokenizer were not checked"]
        promise = _promised(folder, report)
        _check_weights(contents, promise, notes, report)
        notes += [check_finite(contents, report)]
        if any(name in contents.entries for name in TOKENIZER_FILES):
            _check_tokens(folder, promise, needs_chat_template, notes, report)
    return contents, [note for note in notes if note]


def _copy_metadata(contents: Contents, folder: Path, report: Report) -> bool:
    """Copies only what the allow list names, so that no code of the checkpoint is near what loads it."""
    for name in contents.metadata:
        if contents.entries[name].size > MAX_METADATA_BYTES:
            report(ConfigInvalid(f"{name} has {contents.entries[name].size} bytes, which no such file has", subject=name))
            return False
        (folder / name).write_bytes(contents.read(name))
    for name in (CONFIG, GENERATION, TOKENIZER_CONFIG):
        if (folder / name).is_file() and not isinstance(_json_of(folder / name), dict):
            message = f"{name} is not a JSON object in UTF-8 without a byte order mark: save it again"
            report(ConfigInvalid(message, subject=name))
            return False
    return (folder / CONFIG).is_file()


def _json_of(path: Path) -> Any:
    """As strict as transformers, which takes UTF-8 alone, where `json` by itself guesses the encoding of bytes."""
    try:
        return json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError):
        return None


def _remote_code_allowed(folder: Path, trusted: bool, report: Report) -> bool:
    """Even then none of it is run here."""
    for name in (CONFIG, TOKENIZER_CONFIG):
        if (folder / name).is_file() and _json_of(folder / name).get("auto_map") and not trusted:
            message = f"{name} has an auto_map, so the checkpoint wants to run code of its own"
            remedy = "save it without, or set trust_remote_code if you trust whoever wrote it"
            report(RemoteCodeRefused(f"{message}: {remedy}", subject=name))
            return False
    return True


def _promised(folder: Path, report: Report) -> Promise:
    try:
        return promise_of(folder)
    except ConfigInvalid as fault:
        report(fault)
        return Promise(values=_json_of(folder / CONFIG), unknown=f"no model can be made of {CONFIG}")


def _check_weights(contents: Contents, promise: Promise, notes: list[str], report: Report) -> None:
    if not contents.whole:
        notes.append("missing tensors were not looked for, as not every weight file could be read")
    if promise.architecture is not None:
        check_tensors(contents, promise.architecture, report)
        free = (*promise.architecture.float32, *promise.architecture.ignored)
        check_dtypes(contents, promise.values, free, report)
        return
    notes.append(f"names and shapes of tensors were not compared with the model's: {promise.unknown}")
    check_names(contents, promise.values, report)
    check_dtypes(contents, promise.values, (), report)


def _check_tokens(folder: Path, promise: Promise, needs_chat_template: bool, notes: list[str], report: Report) -> None:
    settings: Mapping[str, Any] = _json_of(folder / TOKENIZER_CONFIG) or {} if (folder / TOKENIZER_CONFIG).is_file() else {}
    if settings.get("auto_map"):
        notes.append("the tokenizer was not loaded, as it needs code of its own")
        return
    if promise.architecture is None:
        (folder / CONFIG).unlink()  # a config that transformers can't read would keep it from loading the tokenizer
    try:
        tokenizer = load_tokenizer(folder)
    except SnapshotInvalid as fault:
        report(fault)
        return
    generation = read_generation(folder)
    check_tokenizer(tokenizer, promise.values, generation, needs_chat_template=needs_chat_template, report=report)

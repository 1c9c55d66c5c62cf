"""Roots, local or in object storage, are looked through for folders with weights; nothing is opened and nothing written.

At any depth, except in folders whose name begins with a dot. A link to a folder is as good as a folder, but only `BEHIND_LINKS`
levels of what is behind it are looked at: it may lead anywhere.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from infra.errors import ConfigError
from infra.saved.layouts import Saved, find_saved
from infra.store import Store, path_of

logger = logging.getLogger(__name__)
BEHIND_LINKS = 2  # as deep as actor/huggingface lies in a checkpoint
_WEIGHTS = re.compile(
    r"(model.*|adapter_model)\.(safetensors|safetensors\.index\.json)|pytorch_model.*\.bin|adapter_config\.json"
)


def scan(roots: Iterable[str], pattern: str | None = None) -> list[Saved]:
    """Everything below the roots that is named as a checkpoint and has weights, once each, by step.

    Raises ConfigError for a root that is not there, or of another kind; StoreError.
    """
    found = {saved.location: saved for root in map(root_url, roots) for saved in find_saved(root, _with_weights(root), pattern)}
    return sorted(found.values(), key=lambda saved: (saved.step, saved.location))


def root_url(root: str) -> str:
    """A local path or a URL as the URL it is known by."""
    scheme, separator, _ = root.partition("://")
    if not separator:
        return Path(root).expanduser().absolute().as_uri()
    if scheme not in ("file", "s3"):
        raise ConfigError(f"root {root!r}: use a folder, or s3://bucket/prefix")
    return root.rstrip("/")


def _with_weights(root: str) -> set[str]:
    if root.startswith("file://"):
        return set(_folders(path_of(root)))
    names = Store(root).list("")
    found = {folder for folder, _, name in (key.rpartition("/") for key in names) if folder and _WEIGHTS.fullmatch(name)}
    return {folder for folder in found if not any(part.startswith(".") for part in folder.split("/"))}


def _folders(root: Path) -> Iterator[str]:
    try:
        if not root.is_dir():
            raise ConfigError(f"root {root} is no folder: name the one that checkpoints are saved in")
        os.listdir(root)
    except OSError as error:
        raise ConfigError(f"root {root} can't be looked through: {error.strerror}; let this user read it") from error
    yield from _below(root, root, None)


def _is_looked_into(name: str) -> bool:
    """One that is no UTF-8 has no URL, and no name in a store."""
    return not name.startswith(".") and not any("\ud800" <= letter <= "\udfff" for letter in name)


def _below(root: Path, folder: Path, left: int | None) -> Iterator[str]:
    """`left` is how many levels below this one may still be looked at, None while no link was followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        folders = [folder / entry.name for entry in entries if _is_looked_into(entry.name) and entry.is_dir()]
    except OSError as error:  # one that may not be read, or is gone meanwhile
        logger.warning("%s can't be looked through, so what is in it is not found: %s", folder, error)
        return
    if folder != root and any(_WEIGHTS.fullmatch(entry.name) for entry in entries):
        yield folder.relative_to(root).as_posix()
    for below in folders if left != 0 else ():
        if below.is_symlink() and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(below)):
            continue  # it leads back to where it is
        if left is not None:
            yield from _below(root, below, left - 1)
        else:
            yield from _below(root, below, BEHIND_LINKS if below.is_symlink() else None)

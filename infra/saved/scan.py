"""Roots, local or in object storage, are looked through for folders with weights; nothing is opened and nothing written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from infra.errors import ConfigError
from infra.saved.layouts import Saved, find_saved
from infra.store import Store, path_of

DEPTH = 4
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
    return {folder for folder, _, name in (key.rpartition("/") for key in names) if folder and _WEIGHTS.fullmatch(name)}


def _folders(root: Path) -> Iterator[str]:
    """Links are not followed: a `latest` is no checkpoint of its own."""
    if not root.is_dir():
        raise ConfigError(f"root {root} is no folder: name the one that checkpoints are saved in")
    for folder, below, names in os.walk(root):
        relative = Path(folder).relative_to(root)
        if len(relative.parts) >= DEPTH:
            below.clear()
        below[:] = [name for name in below if not name.startswith(".")]
        if relative.parts and any(map(_WEIGHTS.fullmatch, names)):
            yield relative.as_posix()

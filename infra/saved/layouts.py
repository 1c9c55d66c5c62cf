"""The path of a checkpoint says its step, in every layout that trainers are known to save in, or in the user's own.

`step_N`, `iter_N` (Megatron's zeros before it), `checkpoint-N` (transformers), `global_step_N` (verl, DeepSpeed), each with
`_`, `-` or nothing before the number; the weights lie in the folder itself or in one of its `hf` folders. `N/hf`: a folder that
is a number, which needs one. Whatever else lies there is no checkpoint, `checkpoint-10.tmp` for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from infra.model import EvalPoint
from infra.store import Store, path_of
from infra.validation.readers import LocalFolder, StorePrefix

INNER = ("hf", "huggingface", "hf_model", "actor/huggingface")
_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt|global_?step)[_-]?(\d+)")
_NUMBER = re.compile(r"\d+")
_ANONYMOUS = {
    "checkpoints",
    "checkpoint",
    "ckpts",
    "ckpt",
    "hf",
    "huggingface",
    "saved",
    "save",
    "output",
    "out",
    "models",
    "weights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint below a root, a URL: `name` is the folder that has its weights, `kept` the one a retention would delete."""

    root: str
    name: str
    kept: str
    step: int

    @property
    def location(self) -> str:
        return self._url(self.name)

    @property
    def kept_location(self) -> str:
        return self._url(self.kept)

    @property
    def path(self) -> str:
        """As a request names it: a local path, or the URL of a prefix."""
        return str(path_of(self.location)) if self.root.startswith("file://") else self.location

    @property
    def reader(self) -> LocalFolder | StorePrefix:
        return LocalFolder(Path(self.path)) if self.root.startswith("file://") else StorePrefix(Store(self.root), self.name)

    def _url(self, name: str) -> str:
        return f"{self.root}/{quote(name) if self.root.startswith('file://') else name}"

    def point(self, run: str, attempt: int = 0) -> EvalPoint:
        return EvalPoint(run=run, step=self.step, attempt=attempt)


def find_saved(root: str, folders: Iterable[str], pattern: str | None = None) -> list[Saved]:
    """The checkpoints among folders that lie below `root` and have weights in them; by step, then by name."""
    known = set(folders)
    found = [made for name in known if (made := _own(root, name, pattern) if pattern else _usual(root, name, known))]
    return sorted(found, key=lambda saved: (saved.step, saved.name))


def _own(root: str, name: str, pattern: str) -> Saved | None:
    found = re.fullmatch(pattern, name)
    if found is None:
        return None
    step = found["step"] if "step" in found.re.groupindex else found[1]
    return Saved(root=root, name=name, kept=name, step=int(step)) if step and step.isdecimal() else None


def _usual(root: str, name: str, known: set[str]) -> Saved | None:
    outer, _, inner = name.partition("/")
    if inner and inner not in INNER:
        return None
    named = _STEP.fullmatch(outer)
    if named is None:
        numbered = _NUMBER.fullmatch(outer) and inner
        return Saved(root=root, name=name, kept=outer, step=int(outer)) if numbered else None
    if inner and outer in known:  # the folder itself has weights: what is below is of something else
        return None
    return Saved(root=root, name=name, kept=outer, step=int(named[1]))


def run_of(root: str) -> str:
    """A name for the run whose checkpoints lie there: the folder's, or that of the folder around one called `checkpoints`."""
    place = str(path_of(root)) if root.startswith("file://") else root.partition("://")[2]
    parts = [part for part in place.split("/") if part]
    name = next((part for part in reversed(parts) if part.lower() not in _ANONYMOUS), parts[-1])
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "saved"

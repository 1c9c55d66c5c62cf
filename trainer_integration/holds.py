"""A trainer that prunes its checkpoints asks here first, and what waits for an evaluation is kept until that is over.

    for folder in deletable(sorted_oldest_first, keep=3):
        shutil.rmtree(folder)

Nothing here raises, or imports more than the standard library and Pinpoint's store.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from infra.holds import is_held

__all__ = ["deletable", "is_held", "prune_after_save", "unheld"]
logger = logging.getLogger(__name__)
Folder = TypeVar("Folder", str, Path)
_ITERATION = re.compile(r"iter_(\d+)", re.ASCII)


def unheld(checkpoints: Iterable[Folder]) -> list[Folder]:
    """Those that nobody holds, in their order: a filter for any retention of one's own."""
    return [checkpoint for checkpoint in checkpoints if not is_held(checkpoint)]


def deletable(checkpoints: Sequence[Folder], keep: int, protected: Iterable[Folder] = ()) -> list[Folder]:
    """What "keep the last N" deletes of checkpoints that are given oldest first: neither held ones nor those `protected`.

    A held one counts among the N only if it is among the last N; it goes with a later call, when its hold has ended.
    """
    spared = set(protected)
    return unheld(checkpoint for checkpoint in checkpoints[: max(0, len(checkpoints) - keep)] if checkpoint not in spared)


def prune_after_save(save_dir: str | Path, keep: int) -> list[Path]:
    """To be called on one rank after Megatron-LM's `save_checkpoint`: keeps the last `keep` of its `iter_N` folders.

    The one that its tracker file names is never deleted, whatever its number; if the file can't be read, nothing is, and
    folders of any other name never are. Gives what was deleted; never raises.
    """
    try:
        root = Path(save_dir)
        numbered = [(int(found[1]), path) for path in root.iterdir() if (found := _ITERATION.fullmatch(path.name))]
        ordered = [path for _, path in sorted(numbered) if path.is_dir()]
        gone = deletable(ordered, max(1, keep), [path for number, path in numbered if number == _tracked(root)])
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
    except (OSError, ValueError) as error:  # ValueError: a tracker file that is no text, a path that can't be one
        logger.warning("pinpoint: checkpoints in %s were not pruned: %s", save_dir, error)
        return []
    return gone


def _tracked(root: Path) -> int | None:
    """https://github.com/NVIDIA/Megatron-LM, `get_checkpoint_tracker_filename`: a number, or `release`.

    Raises ValueError for anything else: it may be just being written.
    """
    try:
        text = (root / "latest_checkpointed_iteration.txt").read_text().strip()
    except FileNotFoundError:
        return None
    return None if text == "release" else int(text)

"""What a user calls a checkpoint (a folder, a hub id, a prefix in a store) leads to complete files here, or to the remedy.

Nothing is downloaded: a hub id is looked up in huggingface_hub's own cache.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from infra.errors import ConfigError, SnapshotMissing
from infra.store import Store
from infra.validation.readers import CheckpointReader, LocalFolder, StorePrefix

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_checkpoint(text: str) -> CheckpointReader:
    """Raises ConfigError for an address of another kind, SnapshotMissing for what is not there."""
    scheme, separator, _ = text.partition("://")
    if separator and scheme not in ("file", "s3"):
        raise ConfigError(f"checkpoint {text!r}: use a folder, a hub id, or s3://bucket/prefix")
    return StorePrefix(Store(text)) if scheme == "s3" and separator else LocalFolder(resolve_checkpoint(text))


def resolve_checkpoint(text: str) -> Path:
    """The folder of a path, a file:// URL, or a hub id such as `Qwen/Qwen3-0.6B` that the hub's local cache holds.

    Raises SnapshotMissing if there is none.
    """
    try:
        path = Path(unquote(urlsplit(text).path)) if text.startswith("file://") else Path(text).expanduser()
    except RuntimeError:  # ~ of nobody
        raise SnapshotMissing(f"checkpoint folder {text} does not exist") from None
    if path.is_dir():
        return path
    if path.exists():
        raise SnapshotMissing(f"checkpoint {text} is a file: name the folder that it is in")
    if not _HUB_ID.fullmatch(text):
        raise SnapshotMissing(f"checkpoint folder {text} does not exist")
    return _cached(text)


def _cached(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        remedy = f"fetch it with `hf download {hub_id}`, or name a folder"
        raise SnapshotMissing(f"{hub_id} does not exist as a folder, and the hub's cache does not hold it: {remedy}") from None

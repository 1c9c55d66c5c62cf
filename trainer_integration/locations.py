"""A checkpoint that the trainer did not export is named so that it is the same one wherever it is read.

That is an absolute path, or an s3:// URL. What can be neither is refused before training begins.
"""

from __future__ import annotations

import string
from pathlib import Path

from infra.errors import ConfigError, SnapshotMissing
from infra.store import path_of
from infra.validation.resolve import resolve_checkpoint

STEP_FIELDS = ("step", "rollout_id")  # what Miles calls it, too
SAMPLES = (0, 1, 10, 999_999_999, 1_000_000_000)


def located(text: str) -> Path | str:
    """The place as it is named here, whether or not there is anything. Raises ConfigError for a URL of another kind."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text).absolute()
    if scheme == "file":
        return path_of(text)
    if scheme != "s3" or "/" not in rest.strip("/"):
        raise ConfigError(f"checkpoint {text!r}: use a folder, or s3://bucket/prefix")
    return text.rstrip("/")


def found_checkpoint(text: str) -> Path | str:
    """The same of a checkpoint that is there already, which may be a hub id of the local cache; nothing is downloaded.

    Raises ConfigError, with the remedy, for what is neither there nor an absolute path, which another machine may have.
    """
    if "://" in text or Path(text).is_absolute():
        return located(text)
    try:
        return resolve_checkpoint(text).absolute()
    except (SnapshotMissing, OSError) as error:
        raise ConfigError(str(error)) from None
    except ImportError:
        raise ConfigError(f"{text} does not exist as a folder, and huggingface_hub is not installed: name a folder") from None


def fault_of_pattern(pattern: str, wanted: str) -> str | None:
    """Why `pattern` can't say where the checkpoint of each step is; None if it can. `wanted` are the fields to write in it."""
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None]
        if not fields or set(fields) - set(STEP_FIELDS):
            return f"must hold {wanted}, and no other field"
        places = {saved_at(pattern, step) for step in SAMPLES}
    except (ConfigError, LookupError, TypeError, ValueError, OverflowError) as error:
        return f"can't be filled in with a step ({type(error).__name__}: {error}): write {wanted} with a format of integers"
    if len(places) < len(SAMPLES):
        return f"names one place for several steps: write {wanted} with a format of integers"
    return None


def saved_at(pattern: str, step: int) -> Path | str:
    return located(pattern.format(**dict.fromkeys(STEP_FIELDS, step)))

"""While a checkpoint waits for its evaluation or is read, a record beside it says until when, to whoever would delete it.

`PARENT/.pinpoint-holds/NAME/ID.json`, beside the folder `NAME` that a retention deletes, locally or in object storage. A hold
is alive for `ttl_s` after it was last written, on the clock of the storage it lies in; `until` in it is for people. It is a
request, not a lock: who deletes the checkpoint all the same turns its evaluation into a skip, `ckpt_missing`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter

from infra.errors import PinpointError
from infra.store import PROBES, Store, path_of

logger = logging.getLogger(__name__)
FOLDER = ".pinpoint-holds"
WAITING_S = 6 * 3600.0
READING_S = 300.0
LITTER_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Who holds a checkpoint and for what; `until` is when it ends unless it is renewed, by the holder's clock."""

    id: str
    by: str
    ttl_s: float
    until: str


_HOLD = TypeAdapter(Hold)


def hold(checkpoint: str | Path, id: str, *, by: str, ttl_s: float) -> None:
    """Asks that the checkpoint be kept for `ttl_s` from now; the same id again renews it. Raises StoreError."""
    store, name = _beside(checkpoint)
    until = datetime.now(UTC) + timedelta(seconds=ttl_s)
    made = Hold(id=id, by=by, ttl_s=ttl_s, until=until.isoformat(timespec="seconds"))
    store.write(f"{name}/{id}.json", _HOLD.dump_json(made))
    _tidy(store)


def release(checkpoint: str | Path, id: str) -> None:
    """Ends one's own hold. Raises StoreError."""
    store, name = _beside(checkpoint)
    store.delete(f"{name}/{id}.json")
    _forget_empty(store, name)


def live_holds(checkpoint: str | Path) -> list[Hold]:
    """The holds that are alive. Raises StoreError."""
    store, name = _beside(checkpoint)
    written = store.written(name)
    clock = store.clock() if written else 0.0
    found = []
    for key, at in written.items():
        try:
            record = _HOLD.validate_json(store.read(key))
        except FileNotFoundError:
            continue
        except ValueError:  # cut short by a machine that stopped: it holds for a while
            record = Hold(id=key, by="unreadable record", ttl_s=READING_S, until="")
        if clock - at < record.ttl_s:
            found.append(record)
    return found


def is_held(checkpoint: str | Path) -> bool:
    """Whether a checkpoint should be kept for now; of `N/hf`, it may be `N` that is held. Never raises: in doubt it is kept."""
    try:
        return bool(live_holds(checkpoint) or live_holds(_parent(checkpoint)))
    except (PinpointError, OSError, ValueError) as error:  # ValueError: a name that no storage has
        logger.warning("whether %s is held can't be told, so it is kept: %s", checkpoint, error)
        return True


def _beside(checkpoint: str | Path) -> tuple[Store, str]:
    text = str(checkpoint).rstrip("/")
    if text.startswith("s3://"):
        parent, _, name = text.rpartition("/")
        return Store(f"{parent}/{FOLDER}"), name
    path = _local(text)
    return Store((path.parent / FOLDER).as_uri()), path.name


def _parent(checkpoint: str | Path) -> str:
    text = str(checkpoint).rstrip("/")
    return text.rpartition("/")[0] if text.startswith("s3://") else str(_local(text).parent)


def _local(text: str) -> Path:
    return path_of(text) if text.startswith("file://") else Path(text).absolute()


def _tidy(store: Store) -> None:
    """What holders that were killed left long ago, mostly beside checkpoints that are gone."""
    written = store.written("")
    newest = max(written.values(), default=0.0)  # this moment, on the storage's clock
    for key, at in written.items():
        if newest - at > LITTER_S:
            store.delete(key)
            _forget_empty(store, key.partition("/")[0])


def _forget_empty(store: Store, name: str) -> None:
    for folder in filter(None, map(store.local_path, (name, PROBES, ""))):
        with suppress(OSError):  # it is gone, or somebody else's hold is in it
            folder.rmdir()

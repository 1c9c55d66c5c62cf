"""A snapshot that somebody holds is never deleted; one that nobody holds any more is, however its owner ended.

A holder is an object in the store that its process keeps writing again; it is alive while the store's own clock says that it
was written less than its `ttl_s` ago, so nobody's clock is trusted. Deleting follows one rule, for owners and sweepers
alike: announce the deletion first, then look for holders, and only without any delete. A reader does it the other way round:
become a holder first, then look for an announced deletion. With a store that reads what was written, one of the two sees the
other (Dekker's argument), in whatever order their steps fall.

Layout: `leases/RUN/SNAPSHOT/holders/ID.json`, `leases/RUN/SNAPSHOT/deletions/ID` and `leases/RUN/SNAPSHOT/made`, by which a
snapshot is known as ours even when nobody holds it, beside `snapshots/RUN/SNAPSHOT/...`; infra/handover.py has two more.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from infra.errors import ExportFailed, SnapshotMissing
from infra.model import EvalPoint
from infra.snapshot import MANIFEST, PREFIX, SNAPSHOTS
from infra.store import Store

logger = logging.getLogger(__name__)
LEASES = "leases"
TTL_S = 120.0
_RECORD = re.compile(rf"{LEASES}/(?P<home>[^/]+/[^/]+)/(made|(holders|deletions|sent|left|taken)/[^/]+)")
Purpose = Literal["export", "read", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a snapshot, and what for. A `keep` holder never expires."""

    owner: str
    purpose: Purpose
    ttl_s: float
    id: str


_HOLDER = TypeAdapter(Holder)


def acquire(store: Store, prefix: str, *, owner: str, purpose: Purpose, ttl_s: float = TTL_S, by: str = "") -> Holder:
    """Becomes a holder of the snapshot at `prefix`; an `export` holder may do so before there is anything.

    The holder's id, which is its alone, begins with `by`, the flow run that it works for, if it is given.
    Raises SnapshotMissing if the snapshot is being deleted or, for a reader, has no manifest.
    """
    holder = Holder(owner=owner, purpose=purpose, ttl_s=ttl_s, id=f"{by}.{uuid.uuid4().hex}".lstrip("."))
    renew(store, prefix, holder)
    if purpose == "export":  # after the holder: a sweep that finds this must find who holds it
        store.write(f"{home_of(prefix)}/made", owner.encode())
    if store.list(f"{home_of(prefix)}/deletions"):
        release(store, prefix, holder)
        raise SnapshotMissing(f"{store.url_of(prefix)} is being deleted")
    if purpose != "export" and not store.exists(f"{prefix}/{MANIFEST}"):
        release(store, prefix, holder)
        raise SnapshotMissing(f"{store.url_of(prefix)} has no {MANIFEST}: it was deleted, or never finished")
    return holder


def renew(store: Store, prefix: str, holder: Holder) -> None:
    """Writes the holder again: it is alive for another `ttl_s` from now on the store's clock."""
    store.write(f"{home_of(prefix)}/holders/{holder.id}.json", _HOLDER.dump_json(holder))


def keep_hold(store: Store, prefix: str, owner: str) -> None:
    """Renews the owner's export, and makes sure that it is still one: nobody has begun to delete it, or done so.

    Raises ExportFailed. The renewal comes first: a deletion that is announced later sees a holder that is alive.
    """
    own = [holder for holder in live_holders(store, prefix) if (holder.owner, holder.purpose) == (owner, "export")]
    for holder in own:
        renew(store, prefix, holder)
    if not own or store.list(f"{home_of(prefix)}/deletions") or not store.exists(f"{home_of(prefix)}/made"):
        raise ExportFailed(f"{store.url_of(prefix)} is not {owner}'s any more: its lease expired while it was exported")


def release(store: Store, prefix: str, holder: Holder) -> None:
    """Ends one's own hold; what is left of the snapshot is for `delete_unless_held` or the next sweep."""
    store.delete(f"{home_of(prefix)}/holders/{holder.id}.json")


@contextmanager
def kept_alive(store: Store, prefix: str, holder: Holder) -> Iterator[None]:
    """Renews in a thread of its own, which no busy event loop delays, for the length of the body."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(holder.ttl_s / 4):
            try:
                renew(store, prefix, holder)
            except Exception as error:  # noqa: BLE001 (whatever it is, a thread that ends would lose the lease)
                logger.warning("lease of %s not renewed, tried again in %.0f s: %s", prefix, holder.ttl_s / 4, error)

    thread = threading.Thread(target=keep, name="pinpoint-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=1.0)


def live_holders(store: Store, prefix: str, now: float | None = None) -> list[Holder]:
    """The holders that are alive now, by the store's clock."""
    written = store.written(f"{home_of(prefix)}/holders")
    if not written:
        return []
    now = store.clock() if now is None else now
    live = []
    for key, at in written.items():
        try:
            holder = _HOLDER.validate_json(store.read(key))
        except FileNotFoundError:
            continue  # released meanwhile
        except ValueError:  # cut short by a machine that stopped: it holds for a while, and no sweep stumbles over it
            holder = Holder(owner="unreadable record", purpose="read", ttl_s=TTL_S, id=key.rpartition("/")[2])
        if holder.purpose == "keep" or now - at < holder.ttl_s:
            live.append(holder)
    return live


def delete_unless_held(store: Store, prefix: str, *, owner: str | None = None) -> bool:
    """Deletes the snapshot at `prefix`, whole or half-made, unless somebody other than `owner` holds it; says whether.

    Interrupted anywhere, it is finished by the next call: the manifest goes first, the lease records last.
    """
    mark = f"{home_of(prefix)}/deletions/{uuid.uuid4().hex}"
    store.write(mark, json.dumps({"by": owner or "sweep"}).encode())
    now = max(store.written(mark).values(), default=0.0)  # none: another deletion has finished meanwhile
    if any(holder.owner != owner for holder in live_holders(store, prefix, now)):
        store.delete(mark)
        return False
    store.delete(f"{prefix}/{MANIFEST}")
    store.delete(prefix)
    store.abort_uploads(prefix)
    store.delete(home_of(prefix))
    return True


def forget_stale_deletions(store: Store, prefix: str) -> None:
    """Takes back announcements of sweeps that were killed before they looked; for a snapshot that somebody holds."""
    marks = store.written(f"{home_of(prefix)}/deletions")
    now = store.clock() if marks else 0.0
    for mark, at in marks.items():
        if now - at > TTL_S:
            store.delete(mark)


def owner_of(point: EvalPoint) -> str:
    """A point owns its snapshots, whichever process acts for it."""
    return f"{point.run}/{point.key}"


def delete_run(store: Store, run: str) -> None:
    """Deletes all snapshots of a run, held or not: for who has ended every process that could hold one."""
    for prefix in known(store, run):
        store.delete(f"{prefix}/{MANIFEST}")
        store.delete(prefix)
        store.abort_uploads(prefix)
        store.delete(home_of(prefix))


def sent_key(prefix: str, name: str) -> str:
    """Where it is noted that a file of the snapshot was sent whole, with its digest."""
    return f"{home_of(prefix)}/sent/{name}"


def known(store: Store, run: str | None = None) -> list[str]:
    """Prefixes of all snapshots (of a run) that have a lease record: those that Pinpoint made, and no others.

    What somebody else put among the records stands for nothing, least of all for the folder of a whole run.
    """
    records = filter(None, map(_RECORD.fullmatch, store.list(LEASES if run is None else f"{LEASES}/{run}")))
    prefixes = {f"{SNAPSHOTS}/{record['home']}" for record in records}
    return sorted(filter(PREFIX.fullmatch, prefixes))


def of_point(store: Store, point: EvalPoint) -> list[str]:
    """Those of the point, however many exports of it were begun."""
    return [prefix for prefix in known(store, point.run) if prefix.rpartition("/")[2].startswith(f"{point.key}-")]


def home_of(prefix: str) -> str:
    """Where the lease records of a snapshot are."""
    return f"{LEASES}/{prefix.removeprefix(SNAPSHOTS + '/')}"

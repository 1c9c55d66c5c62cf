"""Of the snapshots that a run has retired the newest `keep` stay, and only whole ones; the others go at once, unless held.

The newest are those whose export was begun last, by the store's clock: who resumes at an earlier step keeps what is measured
from then on. A kept snapshot has a holder that never expires, so no sweep takes it; it goes when newer ones
are retired, or is released.
"""

from __future__ import annotations

import logging

from infra.leases import LEASES, Holder, acquire, delete_unless_held, home_of, known, live_holders, of_point, owner_of, release
from infra.model import EvalPoint
from infra.snapshot import MANIFEST, PREFIX
from infra.store import Store

logger = logging.getLogger(__name__)
KEEPER = "keep_snapshots"


def retire_snapshots(store: Store, point: EvalPoint, keep: int) -> int:
    """Ends the point's own hold on its snapshots, finished or not; gives the bytes freed in its run."""
    freed = 0
    for prefix in of_point(store, point):
        if keep and store.exists(f"{prefix}/{MANIFEST}"):
            _keep(store, prefix, owner_of(point))
        else:
            freed += _delete(store, prefix, owner_of(point))
    return freed + _trim(store, point.run, keep)


def release_kept(store: Store, run: str) -> int:
    """Deletes what was kept of a run, unless somebody holds it; gives the bytes freed."""
    return _trim(store, run, 0)


def kept(store: Store, run: str) -> list[str]:
    """Prefixes of the run's kept snapshots, the oldest first; what was begun in one second by attempt and step."""
    written = store.written(f"{LEASES}/{run}")
    begun = {prefix: int(written.get(f"{home_of(prefix)}/made", 0.0)) for prefix in known(store, run)}
    return sorted((prefix for prefix in begun if _keepers(store, prefix)), key=lambda prefix: (begun[prefix], *_place(prefix)))


def _place(prefix: str) -> tuple[int, int]:
    name = PREFIX.fullmatch(prefix)
    return (int(name["attempt"]), int(name["step"])) if name else (0, 0)


def _keep(store: Store, prefix: str, owner: str) -> None:
    """The keeper comes before the owner goes, so that no sweep can come between."""
    if not _keepers(store, prefix):
        acquire(store, prefix, owner=KEEPER, purpose="keep", ttl_s=0.0)
    for holder in live_holders(store, prefix):
        if holder.owner == owner:
            release(store, prefix, holder)
    logger.info("kept %s", store.url_of(prefix))


def _trim(store: Store, run: str, keep: int) -> int:
    freed, held = 0, kept(store, run)
    for prefix in held[: max(0, len(held) - keep)]:
        for holder in _keepers(store, prefix):
            release(store, prefix, holder)
        freed += _delete(store, prefix, None)
    return freed


def _keepers(store: Store, prefix: str) -> list[Holder]:
    return [holder for holder in live_holders(store, prefix) if holder.owner == KEEPER]


def _delete(store: Store, prefix: str, owner: str | None) -> int:
    size = sum(store.list(prefix).values())
    return size if delete_unless_held(store, prefix, owner=owner) else 0

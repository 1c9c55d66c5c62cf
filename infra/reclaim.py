"""What no live lease claims is deleted, and nothing that Pinpoint did not make is touched; two sweeps at once are harmless.

Snapshots in the store are those with a lease record; staged models those with a time to live. Whatever else lies there is
left alone.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from infra.errors import StoreError
from infra.leases import delete_unless_held, forget_stale_deletions, known, live_holders
from infra.staging import free_staged, free_unlocked, stale_staged
from infra.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A snapshot or staged model: its `size` in bytes, half-done multipart uploads, and what became of it.

    `holders` are the owners that keep it alive, or kept it when it was to be deleted.
    """

    place: str
    size: int
    uploads: int
    holders: tuple[str, ...]
    deleted: bool


def sweep(store: Store, staging_dir: Path, *, wanted: Iterable[Path] = (), dry_run: bool = False) -> list[Found]:
    """Looks at everything that Pinpoint made and deletes what is orphaned, or with `dry_run` only says so.

    `wanted` are staged models that an outbox still names. Raises StoreError; what was not swept is so by the next sweep.
    """
    found = sweep_staging(staging_dir, wanted, dry_run=dry_run)  # first: a store that is down is no reason to keep memory
    failed: Exception | None = None
    for prefix in known(store):
        try:
            found.append(_snapshot(store, prefix, dry_run))
        except (StoreError, OSError) as error:  # the others are swept all the same
            logger.error("%s was not swept: %s", store.url_of(prefix), error)
            failed = failed or error
    if not dry_run:
        store.tidy()
    if failed is not None:
        raise failed
    return found


def sweep_staging(staging_dir: Path, wanted: Iterable[Path], *, dry_run: bool) -> list[Found]:
    """This machine's staged models, and the spare memory and fetched snapshots of processes that are gone."""
    stale = stale_staged(staging_dir, wanted)
    for folder in () if dry_run else stale:
        free_staged(folder)
    return [
        Found(place=f"{socket.gethostname()}:{folder}", size=size, uploads=0, holders=(), deleted=not folder.exists())
        for folder, size in {**stale, **free_unlocked(staging_dir, dry_run=dry_run)}.items()
    ]


def _snapshot(store: Store, prefix: str, dry_run: bool) -> Found:
    size = sum(store.list(prefix).values())
    uploads = len(store.open_uploads(prefix))
    holders = tuple(f"{holder.owner} ({holder.purpose})" for holder in live_holders(store, prefix))
    if holders and not dry_run:
        forget_stale_deletions(store, prefix)
    deleted = not holders and not dry_run and delete_unless_held(store, prefix)
    if deleted:
        logger.info("reclaimed %s: %d bytes, %d uploads", store.url_of(prefix), size, uploads)
    return Found(place=store.url_of(prefix), size=size, uploads=uploads, holders=holders, deleted=deleted)


def rows(found: Iterable[Found]) -> list[dict[str, str]]:
    """For people: one row a snapshot or staged model."""
    return [
        {
            "place": item.place,
            "bytes": f"{item.size:,}",
            "uploads": str(item.uploads),
            "state": "deleted" if item.deleted else f"held by {', '.join(item.holders)}" if item.holders else "orphaned",
        }
        for item in found
    ]

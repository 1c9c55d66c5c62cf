"""What no live lease claims is deleted, and nothing that Pinpoint did not make is touched; two sweeps at once are harmless.

Snapshots in the store are those with a lease record; staged models those with a time to live. Whatever else lies there is
left alone, but for what a worker sent after its export was swept, as it was frozen meanwhile: it has a name of ours, no record,
and no manifest.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from infra.errors import StoreError
from infra.leases import TTL_S, delete_unless_held, forget_stale_deletions, known, live_holders
from infra.snapshot import MANIFEST, PREFIX, SNAPSHOTS
from infra.staging import free_staged, free_unlocked, stale_staged
from infra.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A snapshot or staged model: its `size` in bytes, half-done multipart uploads, and what became of it.

    `holders` are the owners that keep it alive, or kept it when it was to be deleted; `failed` says why it, or the whole
    `place`, could not be swept.
    """

    place: str
    size: int
    uploads: int
    holders: tuple[str, ...]
    deleted: bool
    failed: str = ""

    @classmethod
    def not_swept(cls, place: str, error: Exception) -> Self:
        return cls(place=place, size=0, uploads=0, holders=(), deleted=False, failed=str(error))


@dataclass(slots=True)
class Swept:
    """All that a sweep found, and what failed of it: the next sweep tries that again."""

    found: list[Found] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    @contextmanager
    def going_on(self, place: str) -> Iterator[None]:
        """What can't be swept keeps no other place from being swept."""
        try:
            yield
        except (StoreError, OSError) as error:
            logger.error("%s was not swept: %s", place, error)
            self.found.append(Found.not_swept(place, error))
            self.failures.append(error)

    def raise_first(self) -> None:
        for failure in self.failures:
            raise failure


def sweep(store: Store, staging_dir: Path, *, wanted: Iterable[Path] = (), dry_run: bool = False) -> list[Found]:
    """Looks at everything that Pinpoint made and deletes what is orphaned, or with `dry_run` only says so.

    `wanted` are staged models that an outbox still names. Raises StoreError or OSError, after all else was swept.
    """
    swept = sweep_all(store, staging_dir, wanted=wanted, dry_run=dry_run)
    swept.raise_first()
    return swept.found


def sweep_all(store: Store, staging_dir: Path, *, wanted: Iterable[Path] = (), dry_run: bool = False) -> Swept:
    """As `sweep`, for who has more to do and to show before it raises what failed."""
    swept, here = Swept(), f"{socket.gethostname()}:{staging_dir}"
    with swept.going_on(here):  # first: a store that is down is no reason to keep memory
        swept.found += sweep_staging(staging_dir, wanted, dry_run=dry_run)
    with swept.going_on(store.url):
        late = _sent_too_late(store)  # before the records are read: an export has its record before its first byte
        for prefix in sorted({*known(store), *late}):
            with swept.going_on(store.url_of(prefix)):
                swept.found.append(_snapshot(store, prefix, dry_run))
        if not dry_run:
            store.tidy()
    return swept


def sweep_staging(staging_dir: Path, wanted: Iterable[Path], *, dry_run: bool) -> list[Found]:
    """This machine's staged models, and the spare memory and fetched snapshots of processes that are gone."""
    stale = stale_staged(staging_dir, wanted)
    for folder in () if dry_run else stale:
        free_staged(folder)
    return [
        Found(place=f"{socket.gethostname()}:{folder}", size=size, uploads=0, holders=(), deleted=not folder.exists())
        for folder, size in {**stale, **free_unlocked(staging_dir, dry_run=dry_run)}.items()
    ]


def _sent_too_late(store: Store) -> set[str]:
    """Prefixes named as ours with files, none of them younger than a lease, and no manifest; and those with open uploads.

    Nearly all are of exports that have a lease record.
    """
    uploads = {_prefix_of(key) for key, _ in store.open_uploads(SNAPSHOTS)}
    written = store.written(SNAPSHOTS)
    now = store.clock() if written else 0.0
    others = {_prefix_of(key) for key, at in written.items() if now - at <= TTL_S or key.endswith(f"/{MANIFEST}")}
    return {prefix for prefix in uploads | {_prefix_of(key) for key in written} if PREFIX.fullmatch(prefix)} - others


def _prefix_of(key: str) -> str:
    return "/".join(key.split("/")[:3])


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
            "state": _state(item),
        }
        for item in found
    ]


def _state(item: Found) -> str:
    if item.failed:
        return f"not swept: {item.failed}"
    return "deleted" if item.deleted else f"held by {', '.join(item.holders)}" if item.holders else "orphaned"

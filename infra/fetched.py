"""A snapshot is on this node once, as files that can be loaded: in place if it is local, else fetched and verified by digest.

Of an adapter the merged checkpoint is what can be loaded. Several processes of a node share one cache folder.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter

from infra.adapters import merge
from infra.fetching import fetch, make_room
from infra.model import Manifest, SnapshotRef
from infra.staging import free_spare, lock_spare, share_fetched
from infra.store import path_of, split_location

_MANIFEST = TypeAdapter(Manifest)


class NodeCache:
    """Holds the snapshot that was asked for last; its `folder` is made when something has to be kept.

    All caches of a node, which are neighbours, hold at most `limit_bytes` together, by default what is free on their disk.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._digests: set[str] = set()  # of what this process made loadable
        self._in_use: int | None = None

    def loadable(self, snapshot: SnapshotRef, stopping: threading.Event | None = None) -> tuple[Path, Manifest | None]:
        """Files to load and, if they are not the snapshot itself, what they are.

        Raises SnapshotError, StoreError, NoCapacity if there is no room for them; Stopped if `stopping` is set meanwhile.
        """
        folder, base = self.fetched(snapshot, stopping), snapshot.manifest.base
        if base is None:
            return folder, None
        merged = self.folder / f"merged-{snapshot.manifest.snapshot_digest}"
        note = merged.with_suffix(".json")
        self._use()
        with self._locked():
            if not note.exists():
                shutil.rmtree(merged, ignore_errors=True)
                size = sum(file.stat().st_size for file in path_of(base.location).iterdir() if file.is_file())
                make_room(self.folder.parent, size, self.limit_bytes)
                made = merge(path_of(base.location), folder, base.snapshot_digest, merged, snapshot.point)
                note.write_bytes(_MANIFEST.dump_json(made))
            return merged, _MANIFEST.validate_json(note.read_bytes())

    def fetched(self, snapshot: SnapshotRef, stopping: threading.Event | None = None) -> Path:
        """The snapshot's own files."""
        if snapshot.location.startswith("file://"):
            return path_of(snapshot.location)
        self._use()
        self._digests.add(snapshot.manifest.snapshot_digest)
        folder = self.folder / snapshot.manifest.snapshot_digest
        with self._locked():
            for stale in self.folder.iterdir():
                if snapshot.manifest.snapshot_digest not in stale.name:
                    shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
            if not folder.exists():
                partial = folder.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
                make_room(self.folder.parent, snapshot.manifest.n_bytes, self.limit_bytes)
                store, prefix = split_location(snapshot.location)
                try:
                    fetch(store, prefix, snapshot.manifest, partial, stopping)
                    partial.rename(folder)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
        return folder

    def evict(self) -> None:
        """Forgets what this process made loadable; called when nobody reads that. What others have fetched since stays."""
        if self._in_use is None:
            return
        with self._locked():
            for entry in list(self.folder.iterdir()) if self.folder.exists() else []:
                if any(digest in entry.name for digest in self._digests):
                    shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
            self._digests.clear()
        os.close(self._in_use)
        self._in_use = None
        lock = lock_spare(self.folder)
        if lock is not None:  # nobody else uses the folder
            self.folder.with_name(f"{self.folder.name}.turn").unlink(missing_ok=True)
            free_spare(self.folder, lock)

    def _use(self) -> None:
        """Until this process ends no sweep frees the folder."""
        if self._in_use is None:
            self._in_use = share_fetched(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _locked(self) -> FileLock:
        return FileLock(self.folder.with_name(f"{self.folder.name}.turn"))

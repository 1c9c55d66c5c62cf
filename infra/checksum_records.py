"""What an engine's checksums were when it first held a snapshot is kept, and every later load is compared with it.

Checksums depend on how an engine holds a model, so they are kept for each engine configuration. Layout below the store's root:
`checksums/CONFIGURATION/SNAPSHOT.json`, by the digests of both; the first one written stays.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pydantic import TypeAdapter

from infra.errors import AlreadyExists
from infra.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumRecord:
    """The engine's checksums by its tensors, the snapshot's digests by its own; `proved` are tensors of the engine.

    `canary` is what it then said of `infra.canary`'s text.
    """

    engine: dict[str, str]
    snapshot: dict[str, str]
    proved: tuple[str, ...]
    canary: tuple[float, ...] = ()


_RECORD = TypeAdapter(ChecksumRecord)


class ChecksumRecords:
    """Of one engine configuration. All methods block."""

    def __init__(self, store: Store, configuration: str) -> None:
        self._store, self._root = store, f"checksums/{configuration}"

    def of(self, snapshot_digest: str) -> ChecksumRecord | None:
        return self._read(f"{self._root}/{snapshot_digest}.json")

    def starting_with(self, start: str) -> ChecksumRecord | None:
        """That of the snapshot whose digest begins so, or any one if `start` is empty."""
        found = sorted(key for key in self._store.list(self._root) if key.startswith(f"{self._root}/{start}"))
        return self._read(found[0]) if found else None

    def add(self, snapshot_digest: str, record: ChecksumRecord) -> None:
        with suppress(AlreadyExists):
            self._store.create(f"{self._root}/{snapshot_digest}.json", _RECORD.dump_json(record))

    def _read(self, key: str) -> ChecksumRecord | None:
        try:
            return _RECORD.validate_json(self._store.read(key))
        except FileNotFoundError:
            return None

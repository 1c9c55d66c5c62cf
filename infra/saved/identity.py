"""Digests of what is measured, with what, on what: the same three are the same measurement, whatever it is called."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from infra.datasets import dataset_digest, read_problems, suite_digest
from infra.errors import SnapshotInvalid
from infra.foreign import describe_place_once, fingerprint, noted
from infra.model import BaseModelRef, BlackBoxSpec, DatasetSpec, EvalPoint, FleetSpec, Manifest, Suite
from infra.saved.layouts import Saved
from infra.saved.settled import Standing, files_of
from infra.snapshot import assemble
from infra.store import Store
from infra.validation.adapters import base_of, is_adapter
from infra.validation.readers import LocalFolder, StorePrefix


def engine_digest(fleet: FleetSpec, black_box: BlackBoxSpec | None) -> str:
    """Of what decides how engines answer: not how many they are, where they listen or how long anybody waits for them."""
    decides = fleet.model_dump(mode="json", include={"engine", "gpus_per_engine", "rollout_engine_args", "engine_args"})
    said = {"fleet": decides} if black_box is None else {"black_box": black_box.model_dump(mode="json")}
    return xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A suite and the digest of each of its datasets by name; what a black box is given is one `whole`."""

    suite: Suite
    units: dict[str, str]
    whole: bool = False

    @classmethod
    def of(cls, suite: Suite, black_box: BlackBoxSpec | None) -> Measured:
        """Raises ConfigError for data that can't be read."""
        if black_box is not None:
            return cls(suite=suite, units={suite.name: suite_digest(suite)}, whole=True)
        return cls(suite=suite, units={spec.name: dataset_digest(spec, read_problems(spec)) for spec in suite.datasets})

    def without(self, done: Iterable[str]) -> Suite | None:
        """The suite without the datasets whose digest is among `done`; None if nothing is left to measure."""
        left = {name for name, digest in self.units.items() if digest not in set(done)}
        if not left or left == set(self.units):
            return self.suite if left else None
        return _only(self.suite, [spec for spec in self.suite.datasets if spec.name in left])

    def digests(self, suite: Suite) -> tuple[str, ...]:
        """Of what is left in `suite`."""
        names = {spec.name for spec in suite.datasets}
        return tuple(digest for name, digest in self.units.items() if self.whole or name in names)


def _only(suite: Suite, datasets: list[DatasetSpec]) -> Suite:
    return suite.model_copy(update={"datasets": tuple(datasets)})


def checkpoint_digest(store: Store, saved: Saved, standing: Standing, *, read: bool) -> str | None:
    """Of a checkpoint's content; of one that is no valid one, of its files' names, sizes and times.

    Without `read` it is None unless an earlier use has noted it: reading every byte takes its time. Raises SnapshotMissing.
    """
    place, point = saved.reader, saved.point("any")
    if not standing.files:
        return _of_invalid(place)
    try:
        manifest = _manifest(store, place, standing.files, point, read)
    except SnapshotInvalid:  # its header or its end shows only when it is read
        return _of_invalid(place)
    return manifest.snapshot_digest if manifest else None


def _of_invalid(place: LocalFolder | StorePrefix) -> str:
    """What may not be opened, a link to nothing for one, has a name and the reason."""
    entries = place.entries()
    strays = "".join(f" {name} {entry.stray}" for name, entry in sorted(entries.items()) if entry.stray)
    plain = [name for name, entry in entries.items() if not entry.stray]
    return xxhash.xxh3_128_hexdigest(f"invalid {fingerprint(place, plain)}{strays}".encode())


def _manifest(
    store: Store, place: LocalFolder | StorePrefix, files: Iterable[str], point: EvalPoint, read: bool
) -> Manifest | None:
    describe = describe_place_once if read else noted
    own = describe(store, place, files, point)
    if own is None or not is_adapter(place):
        return own
    base = base_of(place, None)
    if not isinstance(base, LocalFolder):
        raise SnapshotInvalid(f"base {base.location} of an adapter is no local folder: fetch it", subject=base.location)
    under = describe(store, base, files_of(base), point)
    if under is None:
        return None
    named = BaseModelRef(location=Path(base.folder).absolute().as_uri(), snapshot_digest=under.snapshot_digest)
    return assemble(own.files, own.tensors, point, named)

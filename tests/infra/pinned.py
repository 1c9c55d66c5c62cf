"""A leased fleet of fake engines with a real exported checkpoint, as the pinning and running tests need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.model import EngineRef, EvalPoint, FleetLease, SnapshotRef
from infra.snapshot import describe, validate
from tests.fakes.engine import FakeEngine
from tests.infra.checkpoints import make_checkpoint

KEY = "fleet-key"


def snapshot(folder: Path, step: int, seed: int) -> SnapshotRef:
    make_checkpoint(folder, seed, shards=2)
    point = EvalPoint(run="run", step=step)
    return SnapshotRef(point=point, location=folder.as_uri(), manifest=describe(folder, validate(folder), point), owned=False)


@dataclass(frozen=True)
class Fleet:
    """`old` is what the engines serve when the test begins, `new` what they are to be pinned to."""

    engines: tuple[FakeEngine, ...]
    old: SnapshotRef
    new: SnapshotRef

    def lease(self, wanted: SnapshotRef, configuration: str = "") -> FleetLease:
        path = wanted.location.removeprefix("file://")
        refs = tuple(
            EngineRef(name=f"engine-{n}", base_url=engine.base_url, pid=1, checkpoint_path=path, configuration=configuration)
            for n, engine in enumerate(self.engines)
        )
        return FleetLease(fleet="eval", epoch=1, holder="test", ttl_s=60.0, engines=refs, api_key=KEY)


@contextmanager
def fleet(folder: Path, count: int = 2) -> Iterator[Fleet]:
    old, new = snapshot(folder / "old", 0, 0), snapshot(folder / "new", 10, 1)
    with ExitStack() as stack:
        engines = tuple(stack.enter_context(FakeEngine(KEY)) for _ in range(count))
        yield Fleet(engines, old, new)

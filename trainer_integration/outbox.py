"""A point that was decided on has its file before the trainer goes on, and loses it only when Prefect has taken the point.

One JSON file a record, complete or absent, in order of creation. Whoever opens the same folder next finds what was left,
however the trainer ended. What a machine loses with its power is what was written in the moment before: it is synced after.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.errors import ConfigError
from infra.model import EvalRequest, SkippedPoint
from trainer_integration.blank_files import BlankFiles, give_name, write_whole

DEPLOYMENT = "evaluate_snapshot/pinpoint"


class Delivery(BaseModel):
    """A flow run to be created. With `skip`, it is created in state Skipped, and no process is started for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    deployment: str = Field(description="FLOW/DEPLOYMENT")
    idempotency_key: str
    name: str
    tags: tuple[str, ...]
    parameters: dict[str, Any]
    skip: SkippedPoint | None = None
    store_url: str

    @classmethod
    def of(cls, request: EvalRequest, deployment: str, skip: SkippedPoint | None = None) -> Self:
        """The flow run that evaluates `request`, or that shows its skip. The same point always has the same key."""
        point, suite = request.point, request.suite.name
        tags = (f"run:{point.run}", f"step:{point.step}", f"suite:{suite}")
        return cls(
            deployment=deployment,
            idempotency_key=f"evaluate/{point.run}/{point.key}/{suite}",
            name=point.name,
            tags=(*tags, f"skipped:{skip.reason}") if skip else tags,
            parameters={"request": request.model_dump(mode="json")},
            skip=skip,
            store_url=request.store_url,
        )


class Outbox:
    """A folder of deliveries that have not been taken yet."""

    _count = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.files = BlankFiles(folder)

    def new_stem(self) -> str:
        """The name, without its suffix, of what is dispatched now; sorts by time."""
        return f"{time.time_ns():020d}-{next(self._count):06d}-{uuid.uuid4().hex[:8]}"

    def put(self, delivery: Delivery, stem: str | None = None) -> Path:
        """Returns when the record has its name, which it gives; it is synced a moment later. It is gone once delivered."""
        stem = stem or self.new_stem()
        partial, file = self.folder / f"{stem}.partial", self.folder / f"{stem}.json"
        descriptor = self.files.take(partial)
        try:
            write_whole(descriptor, delivery.model_dump_json().encode())
            give_name(descriptor, partial, file)
        except OSError:
            os.close(descriptor)
            partial.unlink(missing_ok=True)
            raise
        self.files.sync(descriptor, file)
        return file

    def pending(self) -> Iterator[tuple[Path, Delivery]]:
        """Oldest first. A file that can't be read is set aside under another name, and not lost."""
        for file in sorted(self.folder.glob("*.json")):
            try:
                delivery = Delivery.model_validate_json(file.read_bytes())
            except FileNotFoundError:
                continue  # another process has delivered it
            except (PermissionError, ValidationError, ConfigError):
                with suppress(OSError):  # another process has set it aside, or may
                    file.rename(file.with_suffix(".unreadable"))
                continue
            yield file, delivery

    def remove(self, file: Path) -> None:
        """Forgets a delivery that was taken, and before it the intent that a crash may have left beside it."""
        file.with_suffix(".intent").unlink(missing_ok=True)
        file.unlink(missing_ok=True)  # another process may have delivered it, too

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob("*.json"))


def staged_in_outbox(home: Path) -> list[Path]:
    """Staged models of points that were decided on and not delivered yet: they are wanted, however old."""
    folders = []
    for _, delivery in Outbox(home.expanduser() / "outbox").pending():
        source = delivery.parameters["request"].get("source", {})
        folders += [Path(place["path"]) for place in (source, *source.get("parts", ())) if place.get("path")]
    return folders

"""A point that was decided on has its file before the trainer goes on, and loses it only when Prefect has taken the point.

One JSON file a record, complete or absent, in order of creation. Whoever opens the same folder next finds what was left,
however the trainer ended. What a machine loses with its power is what was written in the moment before: it is synced after.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.alarms import tags_of
from infra.errors import ConfigError
from infra.model import EvalPoint, EvalRequest, SkippedPoint
from infra.store import path_of
from trainer_integration.blank_files import BlankFiles, give_name, write_whole
from trainer_integration.bounded import wait_s_for
from trainer_integration.owners import lives
from trainer_integration.salvage import of_newer_version, skip_in

logger = logging.getLogger(__name__)
DEPLOYMENT = "evaluate_snapshot/pinpoint"
UNREADABLE = ".unreadable"


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
    api_url: str | None = Field(default=None, description="the Prefect that it is for; None for any")
    owner: str = Field(default="", description="who delivers it as long as it lives, see owners.py; empty for anyone")

    @property
    def staged(self) -> list[Path]:
        """Where its model waits to be exported, here or on other hosts."""
        source = self.parameters.get("request", {}).get("source", {})
        return [Path(place["path"]) for place in (source, *source.get("parts", ())) if place.get("path")]

    @classmethod
    def of(cls, request: EvalRequest, deployment: str, skip: SkippedPoint | None = None, origin: str = "") -> Self:
        """The flow run that evaluates `request`, or that shows its skip; see `key_of` for `origin`."""
        point, suite = request.point, request.suite.name
        tags = (f"run:{point.run}", f"step:{point.step}", f"suite:{suite}", *tags_of(point))
        return cls(
            deployment=deployment,
            idempotency_key=key_of(point, suite, request.store_url, origin),
            name=point.name,
            tags=(*tags, f"skipped:{skip.reason}") if skip else tags,
            parameters={"request": request.model_dump(mode="json")},
            skip=skip,
            store_url=request.store_url,
        )


def key_of(point: EvalPoint, suite: str, store_url: str, origin: str = "") -> str:
    """What Prefect knows a point's flow run by: the same for the same point of the same store, and no other.

    Prefect never forgets a key, and attempts are counted in the store: another store, or one that was emptied, has the same
    points again. `origin` tells those apart, see `origin_of`.
    """
    url = os.path.normpath(path_of(store_url)) if store_url.startswith("file://") else store_url.rstrip("/")
    digest = hashlib.sha256(f"{url}\n{origin}".encode()).hexdigest()[:16]
    return f"evaluate/{point.run}/{point.key}/{suite}/{digest}"


class Outbox:
    """A folder of deliveries that have not been taken yet."""

    _count = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.files = BlankFiles(folder)
        self.wait_s = wait_s_for(folder)
        self.newer: set[str] = set()  # names of files that a newer version wrote, as far as they were seen
        self._told: set[str] = set()

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
        """Oldest first. What can't be read is set aside, with a line in the log, and its point skipped if that can be read."""
        for file in sorted(self.folder.glob("*.json")):
            content = b""
            try:
                content = file.read_bytes()
                delivery: Delivery | None = Delivery.model_validate_json(content)
            except FileNotFoundError:
                continue  # another process has delivered it
            except (OSError, ValidationError, ConfigError) as error:
                delivery = self.set_aside(file, content, error)
            if delivery is not None:
                yield file, delivery

    def set_aside(self, file: Path, content: bytes, error: OSError | ValidationError | ConfigError) -> Delivery | None:
        """Keeps what is no delivery, or no intent, as `.unreadable`, unless a newer version wrote it, which can read it.

        Gives the skip of its point, put in its place, if `content` says which that is.
        """
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        if isinstance(error, ValidationError | ConfigError) and of_newer_version(error):
            self.newer.add(file.name)
            self.tell_once(file.name, f"a newer version of Pinpoint wrote it, and can read it; it is left: {cause}")
            return None
        fields = skip_in(content, file.name, DEPLOYMENT)
        skip = Delivery(**fields) if fields is not None else None
        try:
            self._replace(file, content, skip)
        except FileNotFoundError:
            return None  # another process has set it aside
        except OSError as failure:
            self.tell_once(file.name, f"it can't be read, nor set aside ({failure.strerror}), which is tried again: {cause}")
            return None
        lost = "its point is skipped as crashed" if skip else "a point may be lost"
        logger.error("pinpoint: %s can't be read and is kept as %s, %s: %s", file, UNREADABLE, lost, cause)
        return skip

    def _replace(self, file: Path, content: bytes, skip: Delivery | None) -> None:
        """Whatever fails, one of the two is still there: what can't be read, or the delivery of its point's skip."""
        aside = file.with_suffix(UNREADABLE)
        if skip is None or file.suffix != ".json":
            if skip is not None:
                self.put(skip, stem=file.stem)
            file.rename(aside)
            return
        aside.write_bytes(content)
        self.put(skip, stem=file.stem)  # under its name

    def tell_once(self, name: str, what: str) -> None:
        """Of a file that stays where it is, and is found again and again."""
        if name not in self._told:
            self._told.add(name)
            logger.error("pinpoint: %s: %s", self.folder / name, what)

    def unread(self) -> list[Path]:
        """Files that say of points which nobody here will deliver."""
        newer = (self.folder / name for name in self.newer)
        return sorted([*self.folder.glob(f"*{UNREADABLE}"), *(file for file in newer if file.exists())])

    def is_for(self, delivery: Delivery, api_url: str) -> bool:
        """Whether who speaks to `api_url` is to deliver it: it is for the same Prefect, or its owner is gone."""
        if delivery.api_url is None or delivery.api_url == api_url or not delivery.owner:
            return True
        return not lives(self.folder.parent, delivery.owner)

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
        folders += delivery.staged
    return folders

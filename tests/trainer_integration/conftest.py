"""A trainer's end of Pinpoint against a fake Prefect at the wire, with the submission thread's clock made fast."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from infra.config import Settings
from infra.model import Suite
from infra.store import Store
from tests.fakes.prefect_server import FakePrefect
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import dataset
from trainer_integration import backoff, in_flight, prefect_api, submit, watch
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher

PROBE = re.compile(r"[0-9a-f]{32}\.partial")

SUITE = Suite(name="suite", datasets=(dataset(),))
PROMPT_S = 2.0  # generous: a call that waited for what hangs would take ten times as long


@pytest.fixture(autouse=True)
def _fast_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in (
        (submit, "TICK_S", 0.01),
        (submit, "POLL_S", 0.02),
        (watch, "RECORD_GRACE_S", 0.05),
        (in_flight, "QUEUE_GRACE_S", 0.05),
    ):
        monkeypatch.setattr(module, name, seconds)
    for name, seconds in (("FIRST_PAUSE_S", 0.05), ("LONGEST_PAUSE_S", 0.1)):
        monkeypatch.setattr(backoff, name, seconds)
    monkeypatch.setattr(prefect_api, "TIMEOUT", 1.0)


@pytest.fixture
def prefect() -> Iterator[FakePrefect]:
    with FakePrefect() as server:
        yield server


class Exporter:
    """Stages a small checkpoint, or fails as it is told to; counts its calls."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.fails: Exception | None = None

    def __call__(self, folder: Path) -> None:
        self.folders.append(folder)
        (folder / "half").write_text("written before the failure")
        if self.fails is not None:
            raise self.fails
        make_checkpoint(folder / "made")


class Trainer:
    """Starts dispatchers over one home folder, as restarts of the same trainer would."""

    def __init__(self, folder: Path, api_url: str, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.export = Exporter()
        self.settings = Settings(home=folder / "home", staging_dir=folder / "staging", prefect_api_url=api_url)
        self.store = Store(self.settings.store)

    @property
    def outbox(self) -> list[str]:
        """Without the file by which a thread finds out, once and for a moment, whether there can be nameless ones."""
        files = (self.folder / "home" / "outbox").iterdir()
        return sorted(file.suffix for file in files if not PROBE.fullmatch(file.name))

    @property
    def staged(self) -> list[Path]:
        return [folder for folder in self.export.folders if folder.exists()]

    def start(self, **changes: Any) -> EvalDispatcher:
        dispatch = DispatchSettings(**{"run": "run", "suite": SUITE, "every": 10, "max_in_flight": 8, **changes})
        made = EvalDispatcher(dispatch, self.settings, self.export)
        self.stack.callback(made.close)
        return made


@pytest.fixture
def trainer(tmp_path: Path, prefect: FakePrefect) -> Iterator[Trainer]:
    with ExitStack() as stack:
        yield Trainer(tmp_path, prefect.api_url, stack)

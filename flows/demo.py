"""The main job on one machine: a model that really learns, and the curve of it, each point of which proves its weights.

Whatever ends the demo, nothing that it started is left: no process, no snapshot, no Ray session. A point that had no report
by then has a record that says why.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from flows.settling import wait_for_flows
from flows.stack import Stack
from infra.config import Settings
from infra.errors import PinpointError, StoreError, TrainingFailed
from infra.leases import delete_run
from infra.model import EvalPoint, SkippedPoint
from infra.processes import fated, stop
from infra.records import commit, find, now
from infra.store import Store
from trainer_integration.prefect_api import authorization

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """`small` trains a model too small to learn, for a quick run of the same path."""

    run: str
    steps: int = 120
    every: int = 20
    seed: int = 0
    problems: int = 400
    small: bool = False
    keep_checkpoints: Path | None = None


@dataclass(slots=True)
class Told:
    """What the trainer has said so far."""

    dispatched: list[dict[str, Any]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    error: str | None = None
    bad_input: bool = False


def run_demo(options: DemoOptions, settings: Settings, stack: Stack, console: Console) -> None:
    """Trains and evaluates until every point has its record.

    Raises PinpointError with what the trainer said of its own failure, TrainingFailed if it crashed or gave points up.
    """
    told, log = Told(), stack.logs / "trainer.log"
    folder = settings.home.expanduser() / "demo" / options.run
    try:
        with _trainer(options, settings, folder, log) as process, _bars(console) as progress:
            follow(process, told, Bars(progress))
            code = process.wait()
        if told.error:
            raise PinpointError(told.error) if told.bad_input else TrainingFailed(told.error)
        if code != 0:
            raise TrainingFailed(f"the trainer ended with code {code}; see {log}")
        wait_for_flows(stack.prefect_api_url, f"run:{options.run}")
    finally:
        left = _leave_records(options, told, Store(settings.store))
    if missing := sorted({*told.missing, *left}):
        steps = ", ".join(map(str, missing))
        raise TrainingFailed(f"no report came back in time for step {steps} of {options.run}; see {log} and {stack.ui_url}")


def sweep(run: str, settings: Settings) -> None:
    """After all processes have ended: what the run's points owned is gone, and nothing is left to deliver for it."""
    delete_run(Store(settings.store), run)
    shutil.rmtree(settings.staging_dir / "staged" / run, ignore_errors=True)
    for file in (settings.home.expanduser() / "outbox").glob("*.json"):
        if json.loads(file.read_text())["idempotency_key"].startswith(f"evaluate/{run}/"):
            file.unlink()


def follow(process: subprocess.Popen[bytes], told: Told, bars: Bars) -> None:
    """Reads the trainer's JSON lines to their end."""
    for line in process.stdout or ():
        event = json.loads(line)
        match event.pop("event"):
            case "progress":
                bars.advance(event)
            case "dispatched":
                told.dispatched.append(event)
                bars.dispatched(event)
            case "record":
                bars.recorded(event)
            case "trained":
                bars.trained()
            case "missing":
                told.missing = event["steps"]
            case "error":
                told.error, told.bad_input = event["message"], event["bad_input"]


class Bars:
    """Progress of both phases of training, and a line for each point as it comes back."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def advance(self, event: dict[str, Any]) -> None:
        phase = event["phase"]
        name, measure = ("warm-up", "exact match") if phase == "warm_up" else ("RL", "reward")
        if phase not in self.tasks:
            self.tasks[phase] = self.progress.add_task(name, total=event["total"])
        if phase == "reinforcement" and "warm_up" in self.tasks:
            self.progress.update(self.tasks["warm_up"], total=self.progress.tasks[0].completed)
        note = "" if event["score"] is None else f"{measure} {event['score']:.2f}"
        self.progress.update(self.tasks[phase], completed=event["step"], description=f"{name:8}", note=note)

    def dispatched(self, event: dict[str, Any]) -> None:
        if event["skipped"]:
            self.progress.console.print(f"  step {event['step']:>4}  skipped: {event['skipped']}")

    def recorded(self, event: dict[str, Any]) -> None:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in event["scores"].items() if score is not None)
        self.progress.console.print(f"  step {event['step']:>4}  {scores or 'skipped'}")

    def trained(self) -> None:
        self.progress.add_task("waiting for the last points", total=None)


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}"))
    with Progress(*columns, TimeElapsedColumn(), TextColumn("{task.fields[note]}"), console=console) as progress:
        original = progress.add_task
        progress.add_task = lambda *a, **k: original(*a, **{"note": "", **k})  # type: ignore[method-assign]
        yield progress


@contextmanager
def _trainer(options: DemoOptions, settings: Settings, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "trainer_integration.tiny_trainer", "--run", options.run, "--folder", str(folder)]
    command += ["--steps", str(options.steps), "--every", str(options.every), "--seed", str(options.seed)]
    command += ["--problems", str(options.problems), *(["--small"] if options.small else [])]
    if options.keep_checkpoints:
        command += ["--keep-checkpoints", str(options.keep_checkpoints)]
    where = {"PINPOINT_STORE_URL": settings.store, "PINPOINT_FLEET": settings.fleet.model_dump_json()}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            fated(command), stdout=subprocess.PIPE, stderr=errors, start_new_session=True, env={**os.environ, **where}
        )
    try:
        yield process
    finally:
        stop(process)


def _leave_records(options: DemoOptions, told: Told, store: Store) -> list[int]:
    """Every point that was dispatched and has no record yet gets one: the demo ended first. Gives their steps.

    A store that is down is only logged: it must not hide how the demo ended.
    """
    left = []
    for event in told.dispatched:
        skipped = SkippedPoint(
            point=EvalPoint(run=options.run, step=event["step"], attempt=event["attempt"]),
            suite=event["suite"],
            reason="crashed",
            message="the demo ended before this point had its report",
            export_time_seconds=event["export_time_seconds"],
            finished_at=now(),
        )
        try:
            if find(store, skipped.point, skipped.suite) is not None:
                continue
            commit(store, skipped)
        except (StoreError, OSError) as error:
            logger.warning("%s has no record, and none could be left: %s", skipped.point.name, error)
        left.append(event["step"])
    return left


def new_run_name() -> str:
    return time.strftime("demo-%Y%m%d-%H%M%S")


def artifact_url(stack: Stack, key: str) -> str:
    """The page of the newest version of a keyed artifact in the Prefect UI, or that of all its versions."""
    body = {"artifacts": {"key": {"any_": [key]}}}
    try:
        found = httpx.post(
            f"{stack.prefect_api_url}/artifacts/latest/filter", json=body, timeout=10, headers=authorization()
        ).json()
        return f"{stack.ui_url}/v2/artifacts/artifact/{found[0]['latest_id']}"
    except (httpx.HTTPError, ValueError, LookupError):
        return f"{stack.ui_url}/v2/artifacts/key/{key}"

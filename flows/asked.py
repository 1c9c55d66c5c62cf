"""What a command line asks to be evaluated, as a request; what can't be meant is refused before anything is started."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

import yaml

from flows.settling import wait_for_flows
from infra.black_box import evaluation_class
from infra.config import Settings
from infra.errors import ConfigError
from infra.model import BlackBoxSpec, EvalPoint, EvalRequest, Suite
from infra.store import Store
from infra.suite_files import load_suite
from trainer_integration.attempts import origin_of
from trainer_integration.in_flight import InFlight, last_resort_s
from trainer_integration.outbox import DEPLOYMENT, Delivery, Outbox
from trainer_integration.submit import Submitter


def asked_suite(suite: Path | None, black_box: BlackBoxSpec | None) -> Suite:
    if suite is None:
        if black_box is None:
            raise ConfigError("there is nothing to measure: give --suite, or --function")
        return Suite(name=re.sub("[^A-Za-z0-9_-]", "-", re.split("[.:]", black_box.function)[-1]))
    loaded = load_suite(suite)
    _check_problems(loaded)
    return loaded


def asked_black_box(function: str | None, settings: list[str]) -> BlackBoxSpec | None:
    if function is None:
        if settings:
            raise ConfigError("--set is for a --function: give one, or leave it out")
        return None
    evaluation_class(function)
    given = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {setting}: write NAME=VALUE")
        given[name] = yaml.safe_load(value)
    return BlackBoxSpec(function=function, settings=given)


def _check_problems(suite: Suite) -> None:
    from infra.datasets import read_problems

    for dataset in suite.datasets:
        deque(read_problems(dataset), maxlen=0)


def named_by(checkpoint: str, folder: Path) -> Path:
    """What tells a point's run and step: the folder itself, whatever link leads to it; of the hub's cache, the id."""
    typed = checkpoint if checkpoint.startswith("file://") else Path(checkpoint).expanduser()
    return folder if isinstance(typed, str) or typed.is_dir() else typed


def point_of(checkpoint: Path, run: str | None, step: int | None) -> EvalPoint:
    """The run and step that a checkpoint's folder name tells, unless they are given."""
    name = run or re.sub(r"[^A-Za-z0-9._-]+", "-", checkpoint.name).strip("-._") or "checkpoint"
    number = re.search(r"(\d+)$", checkpoint.name)
    return EvalPoint(run=name, step=step if step is not None else int(number.group(1)) if number else 0)


def delivery_of(request: EvalRequest) -> Delivery:
    """As a trainer would deliver the point. Raises StoreError."""
    return Delivery.of(request, DEPLOYMENT, origin=origin_of(Store(request.store_url), request.point.run))


def submit_and_wait(request: EvalRequest, delivery: Delivery, settings: Settings, api_url: str) -> bool:
    """Submits the point and waits for its record; False if it has none by its deadline."""
    submitter = Submitter(Outbox(settings.home.expanduser() / "outbox"), Store(request.store_url), api_url)
    try:
        submitter.submit(delivery, InFlight.of(request))
        has_record = submitter.drained(last_resort_s(request.deadline_s))
        wait_for_flows(api_url, *delivery.tags)
        return has_record
    finally:
        submitter.close()

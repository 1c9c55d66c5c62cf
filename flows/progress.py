"""Whoever waits for a point sees how far each of its datasets is; what can't be shown is not waited for.

The flow runs in another process, so its bars are read from the progress artifacts that it keeps in Prefect.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from infra.presentation import plain
from trainer_integration.outbox import Delivery
from trainer_integration.prefect_api import authorization

EVERY_S = 2.0
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A dataset: how much of it is done, and what is said of it."""

    key: str
    percent: float
    said: str


@contextmanager
def progress_shown(delivery: Delivery, api_url: str, console: Console) -> Iterator[None]:
    """Bars, one a dataset, under a line for the point, while the body waits for it."""
    ended = threading.Event()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        shown.add_task(f"Evaluating {plain(delivery.name)} ...", total=None)
        thread = threading.Thread(target=_keep, args=(delivery, api_url, shown, ended), daemon=True, name="progress")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(TIMEOUT_S)


def _keep(delivery: Delivery, api_url: str, shown: Progress, ended: threading.Event) -> None:
    tasks: dict[str, TaskID] = {}
    with httpx.Client(base_url=api_url.rstrip("/"), timeout=TIMEOUT_S, headers=authorization()) as api:
        while not ended.wait(EVERY_S):
            try:
                bars = bars_of(delivery, api)
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                continue  # Prefect is busy, or down: the next look may see more
            for bar in bars:
                if bar.key not in tasks:
                    tasks[bar.key] = shown.add_task(bar.said, total=100.0)
                shown.update(tasks[bar.key], completed=bar.percent, description=bar.said)


def bars_of(delivery: Delivery, api: httpx.Client) -> list[Bar]:
    """One a dataset that has begun, by name; of several tries the last."""
    runs = _post(api, "/flow_runs/filter", {"flow_runs": {"idempotency_key": {"any_": [delivery.idempotency_key]}}})
    if not runs:
        return []
    wanted = {"flow_run_id": {"any_": [run["id"] for run in runs]}, "type": {"any_": ["progress"]}}
    artifacts = _post(api, "/artifacts/filter", {"artifacts": wanted, "sort": "CREATED_DESC"})
    bars: dict[str, Bar] = {}
    for found in reversed(artifacts):
        bars[found["key"]] = Bar(found["key"], float(found["data"]), plain(found["description"] or ""))
    return [bars[key] for key in sorted(bars)]


def _post(api: httpx.Client, path: str, body: dict[str, object]) -> list[dict[str, str]]:
    answer = api.post(path, json=body)
    answer.raise_for_status()
    found: list[dict[str, str]] = answer.json()
    return found

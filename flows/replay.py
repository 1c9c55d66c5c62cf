"""`pinpoint replay`: a run's points go from the store to a tracker, those that it does not have; it can be repeated."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from flows.given import SettingsOption, StoreOption
from infra.config import load_settings
from infra.errors import ConfigError
from infra.records import runs
from infra.sinks import Place, check_name
from infra.sinks.projection import project as project_to
from infra.store import Store


def replay(
    run: Annotated[str, typer.Argument(help="name of the run")],
    to: Annotated[list[str], typer.Option("--to", metavar="SINK", help="jsonl, mlflow, tensorboard, trackio or wandb")],
    project: Annotated[str | None, typer.Option(help="project of W&B or trackio, experiment of MLflow")] = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Write every point of a run that a tracker does not have yet, at its own step (docs/sinks.md)."""
    settings = load_settings(settings_file, store_url=store)
    settings.export_s3()
    opened, out = Store(settings.store), Console()
    sinks = [check_name(name) for name in to]
    known = runs(opened)
    if run not in known:
        raise ConfigError(f"no run {run!r} in {opened.url}; runs there: {', '.join(known) or 'none'}")
    for name in sinks:
        target, new, points = project_to(name, Place(store=opened, run=run, home=settings.home, project=project))
        out.print(f"{name}: {new} of {points} points were new to {target}", soft_wrap=True, highlight=False, markup=False)

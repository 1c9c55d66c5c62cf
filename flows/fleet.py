"""`pinpoint fleet`: which fleets run, who has them, what their engines serve, and an end to one that nobody needs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flows.given import SettingsOption
from flows.stack import ray_address_of
from flows.terminal import engines, fleet_line
from infra.config import load_settings
from infra.fleet.lease import connect
from infra.fleet.standing import end, fleets

app = typer.Typer(no_args_is_help=True, help="See and end the fleets that run.")
out = Console()


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False, settings_file: SettingsOption = None
) -> None:
    """Show every fleet of the Ray cluster: its engines, what they serve, who has it and until when."""
    _join(settings_file)
    found = asyncio.run(fleets())
    if as_json:
        typer.echo(json.dumps([asdict(fleet) for fleet in found], indent=1))
        return
    if not found:
        out.print("No fleet runs; the next point that needs one starts it.")
    for fleet in found:
        if not fleet.answers:
            remedy = f"`pinpoint fleet stop {fleet.name} --force` ends it"
            out.print(f"Fleet {fleet.name}: its warden gives no answer; {remedy}", soft_wrap=True, highlight=False)
            continue
        out.print(fleet_line(fleet), soft_wrap=True, highlight=False)
        out.print(engines(fleet))


@app.command()
def stop(
    name: Annotated[str, typer.Argument(help="of the fleet, as in `pinpoint fleet status`")],
    force: Annotated[bool, typer.Option("--force", help="even while a point is being measured, which is then skipped")] = False,
    settings_file: SettingsOption = None,
) -> None:
    """End a fleet's engines and free their GPUs; the next point that needs it starts others."""
    _join(settings_file)
    asyncio.run(end(name, force=force))
    out.print(f"Fleet {name} has ended.")


def _join(settings_file: Path | None) -> None:
    settings = load_settings(settings_file)
    connect(ray_address_of(settings))

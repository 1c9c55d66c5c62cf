"""`pinpoint doctor`: is everything there that an evaluation needs, and what is to be done about what is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from flows.diagnosis import Finding
from flows.diagnosis.finding import Check, found_by
from flows.diagnosis.prefect_server import check_prefect_server
from flows.diagnosis.ray_cluster import check_ray_cluster
from flows.diagnosis.staging import check_staging
from flows.diagnosis.store import check_store
from flows.given import SettingsOption, StoreOption
from flows.stack import api_url_of, ray_address_of
from infra.config import Settings, load_settings
from infra.errors import ServiceUnreachable
from infra.presentation import plain

FAULTY = 1
REMEDIES = {"store": "correct PINPOINT_STORE_URL or --store, and give credentials that may write: docs/settings.md"}
MARKS = {"ok": "[green]ok   [/]", "note": "[yellow]note [/]", "fault": "[red]fault[/]"}
out = Console()


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Look at each piece that evaluations need, and say what to do. Exits with 1 if one is at fault."""
    settings = load_settings(settings_file, store_url=store)
    settings.export_s3()
    findings: list[Finding] = []
    for piece, check in _checks(settings):
        for finding in found_by(piece, check, REMEDIES.get(piece, "")):
            findings.append(finding)
            if not as_json:
                _tell(finding)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    if any(finding.verdict == "fault" for finding in findings):
        raise typer.Exit(FAULTY)


def _checks(settings: Settings) -> Iterator[tuple[str, Check]]:
    yield "store", partial(check_store, settings.store)
    yield "staging", partial(check_staging, settings.staging_dir)
    yield "Prefect", partial(check_prefect_server, api_url_of(settings))
    yield "Ray", partial(_check_ray, settings)


def _check_ray(settings: Settings) -> Sequence[Finding]:
    try:
        address = ray_address_of(settings)
    except ServiceUnreachable:
        address = None
    return check_ray_cluster(address, settings.fleet)


def _tell(finding: Finding) -> None:
    """One line, and one below it for what to do."""
    said = escape(f"{finding.piece}: {plain(finding.found)}")
    out.print(f"{MARKS[finding.verdict]} {said}", soft_wrap=True, highlight=False)
    if finding.remedy:
        out.print(f"      {escape(finding.remedy)}", soft_wrap=True, highlight=False)

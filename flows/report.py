"""`pinpoint report`: a run's history as one HTML page, which opens from disk and asks the network for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flows.given import SettingsOption, StoreOption, read_store
from flows.history import known_run
from infra.errors import ConfigError
from infra.local_files import replacing
from infra.records import history
from infra.report_page import SAMPLES_OF_A_KIND


def report(
    run: Annotated[str, typer.Argument(help="name of the run")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="page to write, or to write anew; default: RUN.html")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=50, help="how many samples of a kind: right, wrong, truncated, not graded")
    ] = SAMPLES_OF_A_KIND,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Write a run's history as one page: curves, scores, proofs, times and samples (docs/history.md)."""
    from infra.report_page.rendering import page  # altair takes a second

    opened, out = read_store(settings_file, store), Console()
    records = history(opened, known_run(opened, run))
    target = _writable(html or Path(f"{run}.html"))
    with out.status(f"Reading {run} ..."):
        made = page(opened, run, records, samples).encode()
    try:
        with replacing(target) as file:
            file.write(made)
    except OSError as error:
        raise ConfigError(f"{target} can't be written: {error.strerror}") from error
    out.print(
        f"{target.resolve()} ({len(made) / 1e6:.1f} MB): open it in a browser", soft_wrap=True, highlight=False, markup=False
    )


def _writable(target: Path) -> Path:
    """Raises ConfigError before the work is done for a place where no file can be."""
    if not target.parent.is_dir():
        raise ConfigError(
            f"{target} can't be written: there is no folder {target.parent}; make it, or name another with --html"
        )
    if target.is_dir():
        raise ConfigError(f"{target} is a folder: name a file with --html")
    return target

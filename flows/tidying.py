"""`pinpoint reclaim` and `pinpoint deliver`: what killed processes left behind is freed, and delivered."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from flows.given import SettingsOption, StoreOption, usable_settings
from flows.terminal import error_line, places
from infra.config import load_settings
from infra.store import Store

out, err = Console(), Console(stderr=True)
FAILED = 1


def reclaim(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be deleted")] = False,
    kept: Annotated[str | None, typer.Option("--kept", metavar="RUN", help="delete what was kept of RUN instead")] = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Delete snapshots, uploads and staged models that no live lease claims."""
    from infra.reclaim import rows, sweep_all
    from trainer_integration.outbox import staged_in_outbox

    settings = usable_settings(settings_file, store)
    if kept is not None:
        _reclaim_kept(Store(settings.store), kept, dry_run)
        return
    wanted = staged_in_outbox(settings.home)
    swept = sweep_all(Store(settings.store), settings.staging_dir, wanted=wanted, dry_run=dry_run)
    found = swept.found
    if found:
        out.print(places(rows(found)))
    freed = sum(item.size for item in found if item.deleted)
    out.print(f"{freed:,} bytes freed, {sum(not item.deleted for item in found)} places left as they are.", soft_wrap=True)
    try:
        swept.raise_first()
    except OSError as error:
        error_line(err, f"not all could be looked at: {type(error).__name__}: {error}")
        raise typer.Exit(FAILED) from None


def _reclaim_kept(store: Store, run: str, dry_run: bool) -> None:
    from infra.retention import kept, release_kept

    found = kept(store, run)
    out.print("\n".join(map(store.url_of, found)) or f"nothing is kept of run {run!r} in {store.url}", soft_wrap=True)
    if found and not dry_run:
        out.print(f"{release_kept(store, run):,} bytes freed.")


def deliver(
    wait: Annotated[float, typer.Option("--wait", min=0, metavar="SECONDS", help="how long to try")] = 15.0,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Deliver what trainers on this machine left: points for Prefect, and skips for due steps that a killed trainer lost."""
    from flows.deliver import deliver_and_tell

    settings = load_settings(settings_file, store_url=store)
    settings.export_s3()
    if not deliver_and_tell(settings, wait, out):
        error_line(err, f"not all was taken within {wait:g} s: see that Prefect and the store are there, and try again")
        raise typer.Exit(FAILED)

"""What every command is given: settings, and a store that is found to be unusable before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.config import Settings, load_settings
from infra.store import Store

SettingsOption = Annotated[Path | None, typer.Option("--settings", help="YAML file with settings (docs/settings.md)")]
StoreOption = Annotated[str | None, typer.Option("--store", help="object store: file:///folder or s3://bucket/prefix")]


def usable_settings(file: Path | None, store: str | None) -> Settings:
    """The settings, with a store that has been written to. Raises ConfigError, StoreError."""
    settings = load_settings(file, store_url=store)
    settings.export_s3()
    Store(settings.store).check()
    return settings

"""What every command is given: settings, and a store that is found to be unusable before anything is started or read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from infra.config import Settings, load_settings
from infra.errors import ConfigError, StoreDenied
from infra.store import Store, path_of

SettingsOption = Annotated[Path | None, typer.Option("--settings", help="YAML file with settings (docs/settings.md)")]
StoreOption = Annotated[str | None, typer.Option("--store", help="object store: file:///folder or s3://bucket/prefix")]


def usable_settings(file: Path | None, store: str | None) -> Settings:
    """The settings, with a store that has been written to. Raises ConfigError, StoreError."""
    settings = load_settings(file, store_url=store)
    settings.export_s3()
    Store(settings.store).check()
    return settings


def read_store(file: Path | None, store: str | None) -> Store:
    """The store of a command that only reads: it is neither made nor written to. Raises ConfigError, StoreDenied."""
    settings = load_settings(file, store_url=store)
    settings.export_s3()
    opened = Store(settings.store)
    folder = path_of(opened.url) if opened.is_local else None
    if folder is not None and folder.exists():
        if not folder.is_dir():
            raise ConfigError(f"store {opened.url} is a file: name the folder of the store with --store")
        if not os.access(folder, os.R_OK | os.X_OK):
            raise StoreDenied(f"store {opened.url} can't be read: check the folder's permissions")
    return opened

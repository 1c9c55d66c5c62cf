"""What runs for the length of one command is no other command's, and takes nobody's announcement away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows import stack
from flows.stack import Stack, stack_of
from infra.config import Settings

ANNOUNCED = "stack.json"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a machine on which each stack is only said to run."""

    @contextmanager
    def said(settings: Settings, *, port: int | None = None, **_: Any) -> Iterator[Stack]:
        yield Stack(prefect_api_url=f"http://127.0.0.1:{port or 1}/api", ray_address="there:1", logs=tmp_path, owned=True)

    monkeypatch.setattr(stack, "local_stack", said)
    monkeypatch.setattr(stack, "_answers", lambda url: True)
    return Settings(home=tmp_path)


def test_what_runs_for_one_command_is_not_borrowed_by_another(settings: Settings) -> None:
    with stack_of(settings, announce=False), stack_of(settings, announce=False) as second:
        assert second.owned
        assert not (settings.home / ANNOUNCED).exists()


def test_what_is_announced_stays_so_whatever_else_is_started_beside_it(settings: Settings) -> None:
    with stack_of(settings, port=1):
        announced = json.loads((settings.home / ANNOUNCED).read_text())
        with stack_of(settings) as borrowed:
            assert not borrowed.owned
        with stack_of(settings, port=2) as another:
            assert another.prefect_api_url == "http://127.0.0.1:2/api"
        assert json.loads((settings.home / ANNOUNCED).read_text()) == announced
    assert not (settings.home / ANNOUNCED).exists()

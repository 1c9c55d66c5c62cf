"""Waiting for what another thread or process does: for the thing itself, and never for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import httpx

Given = TypeVar("Given")


def until(true: Callable[[], object], within_s: float = 60.0, every_s: float = 0.01) -> None:
    """`within_s` is for what never comes true: a busy machine may take long."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"did not come true within {within_s:g} s"
        time.sleep(every_s)


def patiently(call: Callable[[], Given], tries: int = 60) -> Given:
    """As the submission thread does, which tries again when Prefect is slow or gives 503, as it does while SQLite is locked."""
    for _ in range(tries - 1):
        try:
            return call()
        except httpx.HTTPError:
            time.sleep(0.5)
    return call()

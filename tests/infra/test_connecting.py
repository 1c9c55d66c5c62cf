"""A process joins Ray once, however many threads want it at the same moment: Ray's own init would fail."""

from __future__ import annotations

import asyncio
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from infra.concurrency import gather_all
from infra.fleet import lease


async def test_threads_that_join_at_once_join_once(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []

    def init(*, address: str, **_: Any) -> None:
        time.sleep(0.1)
        joined.append(address)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: bool(joined), init=init))
    monkeypatch.setattr(lease, "check_ray", lambda address: None)
    await gather_all(asyncio.to_thread(lease.connect, "there:1") for _ in range(4))
    assert joined == ["there:1"]

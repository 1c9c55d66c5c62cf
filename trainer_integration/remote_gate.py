"""A driver closes the gate of a producer elsewhere, and holds it closed only for as long as it lives and can be heard.

The closing is a lease of `LEASE_S` that a thread renews. A driver that is killed renews no more, and the gate opens.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import httpx

from infra.errors import ServiceUnreachable
from trainer_integration.pause_gate import GateStatus, Pause

logger = logging.getLogger(__name__)
LEASE_S = 15.0
TIMEOUT = httpx.Timeout(4.0, connect=1.0)


class RemoteGate:
    """`url` is what `serve_gate` gave; `key` what it was given. Every method raises ServiceUnreachable."""

    def __init__(self, url: str, *, key: str = "") -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=self.url, timeout=TIMEOUT, headers=headers, trust_env=False)

    @cached_property
    def producer(self) -> str:
        return str(self._call("GET", "/gate")["producer"])

    @cached_property
    def max_closed_s(self) -> float | None:
        """After how long it opens by itself; None if the one who serves it does not say."""
        told = self._call("GET", "/gate").get("max_closed_s")
        return None if told is None else float(told)

    @property
    def status(self) -> GateStatus:
        told = self._call("GET", "/gate")
        return GateStatus(**{name: told[name] for name in GateStatus.__slots__})

    def unfinished(self, wait_s: float = 0.0) -> int:
        ends = time.monotonic() + wait_s
        while True:
            left = max(0.0, ends - time.monotonic())
            count = int(self._call("GET", f"/gate?wait_s={min(left, 1.0)}")["in_flight"])
            if not count or time.monotonic() >= ends:
                return count

    @contextmanager
    def closed(self, max_closed_s: float, settle_s: float = 0.0) -> Iterator[Pause]:
        path, pause, ended = f"/closers/{uuid.uuid4().hex}", Pause(), threading.Event()
        ends = time.monotonic() + max_closed_s
        keeper = threading.Thread(target=self._keep, args=(path, ends, ended), name="pinpoint-gate-lease", daemon=True)
        try:
            self._renew(path, ends)
            keeper.start()
            pause.unfinished = self.unfinished(settle_s)
            yield pause
        finally:
            ended.set()
            pause.lapsed = not self._reopen(path)

    def close(self) -> None:
        self._client.close()

    def _keep(self, path: str, ends: float, ended: threading.Event) -> None:
        while not ended.wait(LEASE_S / 4) and time.monotonic() < ends:
            try:
                if not self._renew(path, ends):
                    return
            except ServiceUnreachable as error:
                logger.warning("pinpoint: the gate can't be kept closed at the moment: %s", error)

    def _renew(self, path: str, ends: float) -> bool:
        """False if the closing has ended at the gate."""
        for_s = min(LEASE_S, max(0.0, ends - time.monotonic()))
        return self._call("PUT", path, {"for_s": for_s}) is not None

    def _reopen(self, path: str) -> bool:
        """False if it had reopened before. One that can't be reached reopens by itself, within the lease."""
        try:
            return bool(self._call("DELETE", path)["held"])
        except ServiceUnreachable as error:
            logger.warning("pinpoint: the gate reopens by itself within %.0f s: %s", LEASE_S, error)
            return False

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """None for a closing that has ended (410)."""
        try:
            response = self._client.request(method, path, json=body)
            if response.status_code == httpx.codes.GONE:
                return None
            return response.raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            remedy = f"see that the producer serves it, and with which key ({type(error).__name__}: {error})"
            raise ServiceUnreachable("the rollout producer's gate", self.url, remedy) from None

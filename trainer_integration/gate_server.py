"""A producer's gate can be closed over HTTP by a driver elsewhere, which has to say again and again that it still lives.

It is served where the gate is, in the producer's process: asking the gate costs the producer no call, and a driver that dies,
or a network that breaks, lets the last lease of a few seconds run out, and the gate opens.

`PUT /closers/NAME {"for_s": S}` closes or keeps closed (410: that closing has ended), `DELETE /closers/NAME` ends one closing,
`GET /gate?wait_s=S` tells how it stands after waiting for what is under way.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from infra.errors import ConfigError
from trainer_integration.pause_gate import PauseGate

logger = logging.getLogger(__name__)
MOST_WAITED_S = 2.0
MOST_BYTES = 4096
CLIENT_TIMEOUT_S = 10.0


@contextmanager
def serve_gate(gate: PauseGate, *, host: str = "127.0.0.1", port: int = 0, key: str = "") -> Iterator[str]:
    """Serves `gate` for the length of the body, and gives the URL for a RemoteGate; any free port by default.

    Raises ConfigError for an address that others can reach without a `key`, which callers send as bearer token.
    """
    if not key and not _is_loopback(host):
        raise ConfigError(f"a gate at {host} can be closed by anybody who reaches it: give it a key, or serve it on 127.0.0.1")
    server = _Listener((host, port), _handler(gate, key))
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="pinpoint-gate", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


def _handler(gate: PauseGate, key: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_TIMEOUT_S

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if self._allowed() and self._is(url.path == "/gate"):
                wait_s = _seconds(parse_qs(url.query).get("wait_s", ["0"])[0])
                if self._is(wait_s is not None, 400):
                    gate.unfinished(min(wait_s or 0.0, MOST_WAITED_S))
                    self._tell()

        def do_PUT(self) -> None:
            if self._allowed() and self._is((closer := self._closer()) is not None):
                for_s = self._for_s()
                if self._is(for_s is not None, 400) and self._is(gate.close(closer or "", for_s or 0.0), 410):
                    self._tell()

        def do_DELETE(self) -> None:
            if self._allowed() and self._is((closer := self._closer()) is not None):
                self._tell(held=gate.reopen(closer or ""))

        def _allowed(self) -> bool:
            given = self.headers.get("Authorization", "").encode(errors="replace")
            return self._is(not key or hmac.compare_digest(given, f"Bearer {key}".encode()), 401)

        def _closer(self) -> str | None:
            _, first, *rest = urlsplit(self.path).path.split("/")
            return rest[0] if first == "closers" and len(rest) == 1 and rest[0] else None

        def _for_s(self) -> float | None:
            try:
                length = min(int(self.headers.get("Content-Length") or 0), MOST_BYTES)
                return _seconds(json.loads(self.rfile.read(length))["for_s"])
            except (ValueError, KeyError, TypeError):
                return None

        def _is(self, right: bool, status: int = 404) -> bool:
            """Answers with `status` what is not right."""
            if not right:
                self._send(status, {"error": self.responses[status][0]})
            return right

        def _tell(self, **more: Any) -> None:
            self._send(200, {**asdict(gate.status), "producer": gate.producer, "max_closed_s": gate.max_closed_s, **more})

        def _send(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            logger.debug(format, *args)

    return Handler


def _seconds(given: Any) -> float | None:
    """A finite number that is not negative."""
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None

"""A fake at the wire is a real HTTP server on loopback: it can hang, drop, refuse and fail as real ones do."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer; `body` is sent as JSON, or as it is if it is text, in so many `pieces`, a moment after each other."""

    body: Any = ""
    status: int = 200
    pieces: int = 1


class Drop(Exception):
    """The connection is closed without an answer."""


class Hang(Exception):
    """The connection stays open and nothing is ever sent."""


class WireServer:
    """Subclasses give `answer`, which runs in one thread a connection. Use as a context manager."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._released = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._connections: set[socket.socket] = set()

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """Raises Drop or Hang for those faults."""
        raise NotImplementedError

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listens, again on the same port after a `stop`."""
        self._released.clear()
        self._server = _Listener(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuses connections from now on, and drops those that are open."""
        if self._server is None:
            return
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        with self.lock:
            for connection in self._connections:
                _shut(connection)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not wait for its answer is no error of this server's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(wire: WireServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with wire.lock:
                wire._connections.add(self.connection)

        def finish(self) -> None:
            with wire.lock:
                wire._connections.discard(self.connection)
            super().finish()

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_PATCH(self) -> None:
            self._serve("PATCH")

        def _serve(self, method: str) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, body = urlsplit(self.path).path, json.loads(raw) if raw else None
            with wire.lock:
                wire.requests.append((method, path, body))
                wire.headers.append(dict(self.headers))
            try:
                self._send(wire.answer(method, path, body))
            except Hang:
                wire._released.wait()
                self.close_connection = True
            except Drop:
                _shut(self.connection)
                self.close_connection = True

        def _send(self, answer: Answer) -> None:
            content = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            size = -(-len(content) // answer.pieces)
            for start in range(0, len(content), max(1, size)):
                time.sleep(0.05 if start else 0.0)
                self.wfile.write(content[start : start + size])

        def log_message(self, format: str, *args: Any) -> None:
            """Keeps quiet."""

    return Handler


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return

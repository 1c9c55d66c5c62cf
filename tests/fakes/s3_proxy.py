"""A wire to a real S3 server that can be as bad as wires are: errors in bursts, connections that break, slowness, silence.

Without a fault it changes nothing, and passes the store's contract suite. Faults strike requests that `Faults.strikes` picks.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

BLOCK = 2**16
CONDITION_FAILED = b"HTTP/1.1 412 "
WRITTEN = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PARTS = re.compile(r"partNumber=")


def any_request(method: str, target: str) -> bool:
    return True


def parts_of_uploads(method: str, target: str) -> bool:
    return method == "PUT" and PARTS.search(target) is not None


def writes(method: str, target: str) -> bool:
    return method in ("PUT", "POST")


@dataclass
class Faults:
    """Each burst is used up request by request; the other faults stay until they are taken back."""

    strikes: Callable[[str, str], bool] = any_request
    answers: list[tuple[int, str]] = field(default_factory=list)  # a burst: status and S3 error code of each answer
    breaks: int = 0  # a burst: connections that are dropped in the middle of a request's body
    broken: bool = False  # every connection is
    full: bool = False
    silent: bool = False  # takes requests and never answers
    unconditional: bool = False  # a create of what exists is said to have succeeded, as servers do that ignore If-None-Match
    bytes_per_s: float | None = None


class S3Proxy:
    """Listens on a free port of loopback; use as a context manager."""

    def __init__(self, endpoint: str) -> None:
        at = urlsplit(endpoint)
        self.upstream = (str(at.hostname), int(at.port or 80))
        self.faults = Faults()
        self.struck = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.open: set[socket.socket] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def mend(self) -> None:
        """No faults from now on; whoever waits for a silent answer is cut off."""
        self.faults, self.struck = Faults(), 0
        with self.lock:
            for connection in self.open:
                _shut(connection)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.listener.close()
        self.mend()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request a connection: S3 clients open another when they are told that this one closes."""
        with self.lock:
            self.open.add(client)
        try:
            with client, suppress(OSError):
                self._pass_on(client)
        finally:
            with self.lock:
                self.open.discard(client)

    def _pass_on(self, client: socket.socket) -> None:
        head, body = _read_head(client)
        if not head:
            return
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        length = int(found[1]) if (found := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)) else 0
        faults = self.faults if self.faults.strikes(method, target) else Faults()
        if self._struck(faults, client, head, body, length):
            return
        with socket.create_connection(self.upstream) as server:
            server.sendall(re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head)[:-2] + b"Connection: close\r\n\r\n")
            back = threading.Thread(target=_pump, args=(server, client, faults), daemon=True)
            back.start()
            self._send_body(client, server, body, length, faults)
            back.join()

    def _struck(self, faults: Faults, client: socket.socket, head: bytes, body: bytes, length: int) -> bool:
        """Whether a fault has dealt with the request."""
        with self.lock:
            dropped = faults.broken or faults.breaks > 0
            faults.breaks -= faults.breaks > 0
            burst = faults.answers.pop(0) if faults.answers and not dropped else None
            answer = (507, "XMinioStorageFull") if faults.full else burst
            self.struck += bool(answer or dropped or faults.silent)
        if (answer or dropped) and b"100-continue" in head.lower():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if dropped:
            _take(client, max(0, length // 2 - len(body)))
            _shut(client)
        elif answer or faults.silent:
            _take(client, length - len(body))
            if answer:
                client.sendall(_error(*answer))
            else:
                client.recv(1)  # until the other side gives up, or `mend`
        return bool(answer or dropped or faults.silent)

    def _send_body(self, client: socket.socket, server: socket.socket, body: bytes, length: int, faults: Faults) -> None:
        server.sendall(body)
        left = length - len(body)
        while left > 0 and (block := client.recv(min(BLOCK, left))):
            left -= len(block)
            if faults.bytes_per_s:
                time.sleep(len(block) / faults.bytes_per_s)
            server.sendall(block)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (block := client.recv(BLOCK)):
            return b"", b""
        data += block
    head, _, body = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", body


def _take(client: socket.socket, count: int) -> None:
    while count > 0 and (block := client.recv(min(BLOCK, count))):
        count -= len(block)


def _pump(source: socket.socket, target: socket.socket, faults: Faults) -> None:
    with suppress(OSError):
        while block := source.recv(BLOCK):
            if faults.unconditional and block.startswith(CONDITION_FAILED):
                block = WRITTEN
            target.sendall(block)
    _shut(target)


def _error(status: int, code: str) -> bytes:
    content = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + content


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

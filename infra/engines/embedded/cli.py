"""A start that can't succeed ends with exit code 2 and one line on stderr that names the remedy.

Torch is imported only after the arguments are parsed and the port is bound.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

from infra.errors import PortInUse, SnapshotError

API_KEY_VARIABLE = "EMBEDDED_ENGINE_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    model_path: str
    host: str
    port: int
    weight_version: str
    api_key: str | None
    max_running_requests: int
    torch_threads: int
    served_model_name: str | None


def main(arguments: Sequence[str]) -> int:
    options = parse_options(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.torch_threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with bind(options.host, options.port) as listener:
            from infra.engines.embedded.server import serve

            return serve(options, listener)
    except (PortInUse, SnapshotError) as error:
        print(f"embedded engine: {error}", file=sys.stderr)
        return 2


def parse_options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m infra.engines.embedded", allow_abbrev=False)
    parser.add_argument("--model-path", required=True, help="a Hugging Face checkpoint folder with safetensors")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--weight-version", default="default", help="the label of the weights loaded at the start")
    parser.add_argument(
        "--api-key",
        default=os.environ.get(API_KEY_VARIABLE) or None,
        help="wanted as `Authorization: Bearer KEY` everywhere but on /health* and /ready; every user of the machine can "
        f"read it in `ps`, unlike one in ${API_KEY_VARIABLE}",
    )
    parser.add_argument("--max-running-requests", type=_positive, default=64)
    parser.add_argument("--torch-threads", type=_positive, default=1)
    parser.add_argument("--served-model-name")
    parsed = parser.parse_args(arguments)
    return Options(**{field.name: getattr(parsed, field.name) for field in fields(Options)})


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: a client is refused, not kept waiting, until the model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortInUse(port, f"the embedded engine ({host}: {error.strerror})", "--port") from error
    return listener
